"""Reading request bodies, bounded."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from starlette.types import Receive, Scope

from purgatory.fastapi.http.bounds import IncomingRequests
from purgatory.fastapi.http.problems import Problem

# A rejected body of up to so many bytes is still read, and discarded: a connection that is closed
# with unread data is reset, and a client that is still sending loses the response (RFC 9112, 9.6).
MAX_DISCARDED: Final = 16 * 1024 * 1024


async def read_body(
    scope: Scope, receive: Receive, limit: int, incoming: IncomingRequests
) -> bytes:
    """Return the whole body; raise Problem if it is larger than `limit` bytes.

    Raises the Problem with which `incoming` refuses it, too: late, or in need of too much memory;
    and one if the server passes on another body than the request announces.
    """
    announced, expects_continue = _announced(scope)
    if announced == 0:
        return b""
    if announced > limit and (announced > MAX_DISCARDED or expects_continue):
        raise body_too_large(limit)
    reading = _BodyReading()
    try:
        body = await reading.read(receive, limit, incoming)
    except asyncio.CancelledError:
        # Somebody else may have cancelled the task as well.
        if not reading.is_refused or reading.task.uncancel() > 0:
            raise
    else:
        _check_whole(scope, announced, len(body))
        return body
    finally:
        incoming.release(reading)
    # Outside of the `except`: the cancellation is no context of it.
    raise reading.take_problem()


class _BodyReading:
    """A body that is read by the current task."""

    __slots__ = ("_body", "_problem", "task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self._body = bytearray()
        self._problem: Problem | None = None

    @property
    def is_refused(self) -> bool:
        """True iff `refuse` was called."""
        return self._problem is not None

    def take_problem(self) -> Problem:
        """Return the problem of a refused body, which is not kept.

        Its frames will refer to this object: the body would stay until the garbage collector runs.
        """
        problem, self._problem = self._problem, None
        assert problem is not None
        return problem

    def refuse(self, problem: Problem) -> None:
        """Free the body, and have `read_body` raise `problem`."""
        self._problem = problem
        self._body.clear()
        # While the task itself is in `hold`, a cancellation would come later: in the endpoint.
        if self.task is not asyncio.current_task():
            self.task.cancel()

    async def read(self, receive: Receive, limit: int, incoming: IncomingRequests) -> bytes:
        """Return the whole body; raise Problem, or CancelledError once it is refused."""
        body = self._body
        received = 0
        while True:
            incoming.hold(self, len(body))
            if self.is_refused:
                raise self.take_problem()
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Problem("bad-json", "the client left before the body was complete")
            chunk = message.get("body", b"")
            received += len(chunk)
            if received <= limit:
                body += chunk
            else:
                body.clear()
                if received > MAX_DISCARDED:
                    raise body_too_large(limit)
            if not message.get("more_body", False):
                break
        if received > limit:
            raise body_too_large(limit)
        return bytes(body)


def _check_whole(scope: Scope, announced: int, received: int) -> None:
    # uvicorn on httptools drops the body of a request that offers an upgrade, such as h2c.
    is_upgrade = any(name == b"upgrade" for name, _ in scope["headers"])
    if announced in (-1, received) and (received or announced != -1 or not is_upgrade):
        return
    expected = "a body" if announced == -1 else f"a body of {announced} bytes"
    raise Problem(
        "bad-json",
        f"the request announces {expected}, and the server passed {received} bytes of it on: send "
        "it without the header Upgrade, or run uvicorn with --http h11 or "
        "purgatory.uvicorn:ParkingProtocol",
    )


def _announced(scope: Scope) -> tuple[int, bool]:
    """Return Content-Length, or -1, and whether the client waits for 100 Continue."""
    # The last of each name: servers reject repeats of these.
    headers = {name: value.strip(b" \t") for name, value in scope["headers"]}
    expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"
    length = headers.get(b"content-length")
    # A Transfer-Encoding overrides it.
    if length is None or b"transfer-encoding" in headers:
        return -1, expects_continue
    # A longer number is beyond every limit.
    is_number = length.isdigit() and len(length) < 16
    return int(length) if is_number else sys.maxsize, expects_continue


def body_too_large(limit: int) -> Problem:
    """Return the problem of a body of more than `limit` bytes."""
    return Problem(
        "body-too-large",
        f"the body is larger than {limit} bytes, the limit of this endpoint: send fewer items at "
        "once, or store the data elsewhere and send its address",
        # What is still on its way is not worth reading.
        headers={"Connection": "close"},
        limit=limit,
    )
