"""`kill -HUP` of uvicorn, and the check of it, as docs/how-to/deploy.md has them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.process_server import ProcessServer
from tests.needs import STARTS_A_WORKER_BEFORE_IT_STOPS_ONE
from tests.nightly import by_night
from tests.pages.blocks import DOCS, blocks

WORKERS = by_night(4, 2)
ABORTED = 124


@STARTS_A_WORKER_BEFORE_IT_STOPS_ONE
@pytest.mark.parametrize(("is_held", "status"), [(False, 0), (True, ABORTED)])
def test_old_workers_are_gone_or_the_check_says_so(
    is_held: bool, status: int, tmp_path: Path
) -> None:
    """A worker that does not become ready within the timeout leaves all of the old ones."""
    texts = [block.text for block in blocks(DOCS / "how-to" / "deploy.md")]
    [start] = [text for text in texts if "--workers" in text]
    [replace] = [text for text in texts if "-HUP" in text]
    start = start.partition(" &")[0].replace("shop:app", "tests.acceptance.held_application:app")
    start = start.replace("--workers 4", f"--workers {WORKERS}")
    if is_held:
        start = start.replace("healthcheck 30", "healthcheck 1")
        replace = replace.replace("timeout 120", "timeout 5")
    hold = tmp_path / "hold"
    command = [sys.executable, "-m", *shlex.split(start), "--port", "0"]
    with ProcessServer(command, HOLD=str(hold)) as server:
        server.wait_started(WORKERS)
        if is_held:
            hold.touch()
        script = f"server={server.process.pid}\n{replace}"
        assert subprocess.run(["bash", "-c", script], check=False).returncode == status
        assert ("aborting the restart" in "".join(server.log)) == is_held, "".join(server.log)
