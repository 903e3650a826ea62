"""Standard streams that are closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import sys
from purgatory.environment import discard_closed_streams

discard_closed_streams()
print("thrown away", file=sys.stderr)
with open(sys.argv[1], "w") as file:
    print(sys.stdin.fileno(), sys.stdout.fileno(), sys.stderr.fileno(), file.fileno(), file=file)
"""


@pytest.mark.parametrize("closed", [">&-", "<&-", "<&- >&- 2>&-"])
def test_each_stream_keeps_its_number(closed: str, tmp_path: Path) -> None:
    """What is opened later must not be where a fault of the process is written."""
    found = tmp_path / "found"
    command = [sys.executable, "-c", SHOW, str(found)]
    subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *command], check=True)
    *streams, later = map(int, found.read_text().split())
    assert streams == [0, 1, 2] and later > 2
