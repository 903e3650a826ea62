"""A real server that callbacks go to, in a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

from tests.patience import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Received:
    """A request that came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class CallbackReceiver:
    """Answers by path: `/status/503` with that, `/slow` never, `/endless` without an end."""

    def __init__(self) -> None:
        self.received: Queue[Received] = Queue()
        self.retry_after: str | None = None
        self.has_ended = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver.answer(self)

            do_GET = do_PUT = do_DELETE = do_PATCH = do_POST  # noqa: N815 - as above

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as above
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Note a request, and answer it as its path says."""
        length = int(request.headers.get("content-length") or 0)
        body = request.rfile.read(length)
        # Names in lower case: HTTP does not care.
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.put(Received(request.command, request.path, headers, body))
        if request.path == "/slow":
            self.has_ended.wait(PATIENCE_S)
            return
        if request.path == "/endless":
            self._answer_for_ever(request)
            return
        status = int(request.path.rpartition("/")[2]) if "/status/" in request.path else 200
        request.send_response(status)
        if status // 100 == 3:
            request.send_header("Location", f"{self.url}/landed")
        if self.retry_after is not None:
            request.send_header("Retry-After", self.retry_after)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def next(self) -> Received:
        """Return the next request that came, or will."""
        return self.received.get(timeout=PATIENCE_S)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.has_ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer_for_ever(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            while not self.has_ended.is_set():
                request.wfile.write(b"x" * 65_536)
        except OSError:
            pass
        request.close_connection = True


@contextmanager
def receiving() -> Iterator[CallbackReceiver]:
    """A receiver, until the block is left."""
    receiver = CallbackReceiver()
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


def closed_port() -> int:
    """Return a port of this machine at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port
