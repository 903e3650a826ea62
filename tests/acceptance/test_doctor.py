"""What `purgatory doctor` says of a server's clock, which it knows to whole seconds."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from purgatory.__main__ import main


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
