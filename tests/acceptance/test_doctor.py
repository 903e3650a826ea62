"""What `purgatory doctor` says of a server's clock, and of the core that is installed."""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from purgatory.__main__ import main
from purgatory.timer import compiled


@pytest.mark.parametrize(
    ("ahead_s", "result"), [(0, "ok"), (-3, "ok"), (3, "ok"), (-60, "warning"), (60, "warning")]
)
def test_the_clock_of_the_server(
    ahead_s: int, result: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A busy server's Date is seconds late: that is no difference of clocks."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(time.time() + ahead_s)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            main(["--json", "--url", f"http://127.0.0.1:{server.server_port}", "doctor"])
        finally:
            server.shutdown()
            thread.join()
    findings = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    [found] = [finding for finding in findings if finding["what"] == "server's clock"]
    assert found["result"] == result, found


@pytest.mark.skipif(compiled, reason="the command itself has the compiled core")
@pytest.mark.parametrize(("is_made", "result"), [(False, "warning"), (True, "ok")])
def test_the_core_that_make_run_has_compiled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    is_made: bool,
    result: str,
) -> None:
    """The service has it, which is beside the sources; the command has not."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    if is_made:
        module = tmp_path / "compiled" / "purgatory" / "timer" / "wheel.so"
        module.parent.mkdir(parents=True)
        module.touch()
    main(["--json", "--url", "http://127.0.0.1:1", "doctor"])
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    [core] = [line for line in lines if line["what"] == "core"]
    assert core["result"] == result
    assert ("`make run` serves" in core["detail"]) == is_made
