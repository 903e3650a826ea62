"""An ASGI request as a connection: waiting in `receive()` for its client, and sending from outside.

Nothing else waits there. Such a wait may be interrupted and begun again, and another one, such as
that of a Starlette stream, may be beside it. On granian, both end in http.disconnect, though the
client is there, as long as the body was not read. So a request without a body has its one message
read before that, and before its response begins; a body is read, or left to the endpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import partial
from types import FunctionType
from typing import Any, Final, Generic, Protocol, TypeVar

from anyio import BrokenResourceError, ClosedResourceError
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from purgatory.fastapi.http.bounds import OfTask, UnreadResponses
from purgatory.fastapi.http.responses import RawResponse

Result = TypeVar("Result")

logger = logging.getLogger("purgatory.fastapi")

# Tasks are weakly held by their loop.
_unfinished: set[asyncio.Task[None]] = set()


# A longer body is sent in pieces: servers take one of any length, and wait for the client to read
# before they take the next.
PIECE: Final = 64 * 1024

# Their `send` needs no current task.
_SERVERS: Final = frozenset({"granian", "gunicorn", "hypercorn", "uvicorn"})
# Where uvicorn's requests are, which call `on_response` after the last message.
_CYCLES: Final = frozenset(
    {"uvicorn.protocols.http.h11_impl", "uvicorn.protocols.http.httptools_impl"}
)
# Their wrappers of `send` note that the response has begun, and do nothing else.
OBSERVERS: Final = frozenset({"starlette._exception_handler", "starlette.middleware.errors"})
# One of ours changes a header.
_TRANSPARENT: Final = OBSERVERS | {"purgatory.fastapi.long_poll"}


class ResponseUnreadError(Exception):
    """The client does not read its response."""


async def send_response(
    send: Send, response: RawResponse, unread: UnreadResponses | None = None
) -> None:
    """Send a whole response; in a task, if it is longer than PIECE.

    Raises ResponseUnreadError if `unread` gives it up, with the response incomplete.
    """
    body = response.body
    start = {"type": "http.response.start", "status": response.status, "headers": response.headers}
    if unread is None or len(body) <= PIECE:
        await send(start)
        await send({"type": "http.response.body", "body": body})
        return
    with sending(len(body), unread) as this:
        await send(start)
        for begin in range(0, len(body), PIECE):
            end = begin + PIECE
            piece, is_last = body[begin:end], end >= len(body)
            await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
            this.unread_bytes = max(0, len(body) - end)


async def send_or_give_up(send: Send, response: RawResponse, unread: UnreadResponses) -> None:
    """Send a whole response from the task of its request.

    If `unread` gives it up it stays incomplete, and the server closes the connection.
    """
    with suppress(ResponseUnreadError):
        await send_response(send, response, unread)


@contextmanager
def sending(size: int, unread: UnreadResponses) -> Iterator[_Sending]:
    """Count `size` bytes that the current task sends within; set `unread_bytes` as they are sent.

    Raises ResponseUnreadError if `unread` gives them up.
    """
    this = _Sending(size)
    try:
        unread.hold(this, size)
        if this.is_ended:
            raise ResponseUnreadError
        yield this
    except asyncio.CancelledError:
        if not this.catches():
            raise
        raise ResponseUnreadError from None
    finally:
        unread.release(this)


class _Sending(OfTask):
    """A response that is sent by the current task."""

    __slots__ = ("unread_bytes",)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.unread_bytes = size

    def give_up(self) -> None:
        """Have `sending` raise ResponseUnreadError."""
        self.end()


def send_from_outside(
    send: Send,
    coroutine: Coroutine[Any, Any, None],
    on_failure: Callable[[], object],
    *,
    needs_task: bool = False,
) -> asyncio.Task[None] | None:
    """Run `coroutine`, which sends with `send`, at once if that is a server's own; else in a task.

    Middleware may need a current task in its `send`: `asyncio.timeout` does, and so do the streams
    of anyio if sniffio is installed. Call it in the context of the request. Returns the task, if it
    is not done at once.
    """
    _begin_next_afresh(send)
    if needs_task or not _is_of_server(unwrapped_send(send, _TRANSPARENT)):
        return finish_in_task(_finish(coroutine, on_failure))
    return send_eagerly(coroutine, on_failure)


def _begin_next_afresh(send: Any) -> None:
    """Have uvicorn begin the next request on the connection in an empty context.

    As `--reset-contextvars` does. It would begin in a copy of the context in which the last message
    of this response is sent.
    """
    cycle = getattr(unwrapped_send(send), "__self__", None)
    on_response = getattr(cycle, "on_response", None)
    if cycle is not None and on_response is not None and type(cycle).__module__ in _CYCLES:
        cycle.on_response = partial(Context().run, on_response)


def unwrapped_send(send: Any, wrappers: frozenset[str] | None = None) -> Any:
    """Return what the functions of the modules `wrappers` were put around, or `send` itself.

    Without `wrappers`, of all modules.
    """
    while isinstance(send, FunctionType) and (wrappers is None or send.__module__ in wrappers):
        names = send.__code__.co_freevars
        if "send" not in names or send.__closure__ is None:
            break
        send = send.__closure__[names.index("send")].cell_contents
    return send


_LEFT: Final = (OSError, ClientDisconnect, ClosedResourceError, BrokenResourceError)


def _is_of_server(send: Any) -> bool:
    # Methods of compiled classes have no module of their own.
    module = getattr(send, "__module__", None) or type(getattr(send, "__self__", send)).__module__
    return module.partition(".")[0] in _SERVERS


def send_eagerly(
    coroutine: Coroutine[Any, Any, None], on_failure: Callable[[], object]
) -> asyncio.Task[None] | None:
    """Run `coroutine` at once; if it waits for something, finish it in a task.

    Servers send a small response without waiting, so that waking a parked request costs no turn of
    the event loop; under a middleware that passes messages through a queue it does wait. An
    exception is logged and followed by `on_failure`: the caller, which completed an operation, did
    not cause it.
    """
    try:
        pending = coroutine.send(None)
    except StopIteration:
        return None
    except Exception as exc:
        _log_failure(exc)
        on_failure()
        return None
    return finish_in_task(_finish(Resumed(coroutine, pending), on_failure))


def finish_in_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run `coroutine`, which must not raise, in a task that need not be awaited."""
    task = asyncio.get_running_loop().create_task(coroutine)
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)
    return task


async def _finish(rest: Awaitable[None], on_failure: Callable[[], object]) -> None:
    try:
        await rest
    except ResponseUnreadError:
        # It is in the log.
        on_failure()
    except Exception as exc:
        _log_failure(exc)
        on_failure()


def _log_failure(exc: Exception) -> None:
    # A client that leaves is no error: middleware closes its queue, or the server raises.
    level = logging.DEBUG if isinstance(exc, _LEFT) else logging.ERROR
    extra = {"action": "response-failed"}
    logger.log(level, "could not send a response", exc_info=exc, extra=extra)


class Resumed(Generic[Result]):
    """Awaits the rest of a coroutine that has run until it yielded `pending`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Result], pending: Any) -> None:
        self._coroutine = coroutine
        self._pending = pending

    def __await__(self) -> Generator[Any, Any, Result]:
        pending = self._pending
        step: Callable[[Any], Any]
        while True:
            # As `yield from`, for a coroutine that has begun.
            try:
                sent = yield pending
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as exc:
                step, argument = self._coroutine.throw, exc
            else:
                step, argument = self._coroutine.send, sent
            try:
                pending = step(argument)
            except StopIteration as finished:
                result: Result = finished.value
                return result


EXTENSION: Final = "purgatory.park"
RELEASE: Final = "release"

Respond = Callable[[Response], object]


# The status that nginx logs for a client that left before its response.
CLIENT_CLOSED_REQUEST: Final = 499
LEFT: Final = RawResponse.empty(CLIENT_CLOSED_REQUEST)
"""The response to a client that has left: only the application's middleware sees it."""


class Abandonable(Protocol):
    """What a client waits for."""

    def abandon(self) -> object:
        """End it, if it is pending: the client has left. Return True if it was, and needs 499."""
        ...


def is_disconnect(message: Message) -> bool:
    """Return True iff the client has left, or has its whole response."""
    return bool(message["type"] == "http.disconnect")


def may_have_body(scope: Scope) -> bool:
    """Return False iff the head of the request says that it has no body (RFC 9112, section 6.3)."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return True
    length = headers.get(b"content-length")
    if length is not None:
        return bool(length.strip(b" \t0"))
    # Versions after HTTP/1.1 need no header for a body.
    return scope["http_version"] > "1.1" and scope["method"] not in ("GET", "HEAD")


class Interruptible:
    """One wait of the current task, which `interrupt` ends without a second task.

    The task is cancelled, and the cancellation ends at the wait, as in `asyncio.timeout`. Servers
    expect that of `receive()`: Starlette's streams and `is_disconnected` cancel it all the time.
    """

    __slots__ = ("_cancelling", "_task")

    def __init__(self) -> None:
        """Wait for nothing yet."""
        # The task that waits; None before and after, and once it is interrupted.
        self._task: asyncio.Task[Any] | None = None
        # The requests for its cancellation that were there before.
        self._cancelling = 0

    def interrupt(self) -> None:
        """End the wait that is under way, if any; a later one is not affected."""
        task = self._task
        self._task = None
        if task is not None:
            task.cancel()

    def _begin_wait(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()

    def _end_wait(self) -> bool:
        """End the wait; return True iff it was interrupted, and nobody else cancels the task."""
        if self._task is not None:
            self._task = None
            return False
        task = asyncio.current_task()
        assert task is not None
        return task.uncancel() <= self._cancelling


class DisconnectListener(Interruptible):
    """Waits in `receive()`, so that a client that leaves is noticed, and ends an operation."""

    __slots__ = ("_receive",)

    def __init__(self, receive: Receive) -> None:
        """Wait in `receive`."""
        super().__init__()
        self._receive = receive

    async def read_empty_body(self) -> None:
        """Read the one message of a request without a body, which the server has at once."""
        # If it is http.disconnect, the server says that again.
        await self._receive()

    # What a parked request keeps of its application: this frame, and no other of ours.
    async def until_disconnect(self, operation: Abandonable | None = None) -> bool:
        """Return True once the client has left or has its response, False if interrupted.

        `operation`, if given, is pending no more then.
        """
        self._begin_wait()
        was_pending: object = False
        try:
            # Other messages are the body, which was read or does not matter.
            while not is_disconnect(await self._receive()):
                pass
        except asyncio.CancelledError:
            if not self._end_wait():
                raise
            return False
        finally:
            if operation is not None:
                was_pending = operation.abandon()
        self._end_wait()
        rest = self._rest(was_pending)
        if rest is not None:
            await rest
        return True

    def _rest(self, was_pending: object) -> Awaitable[Any] | None:
        """Return what sends the response or, if the operation `was_pending`, a 499.

        Nobody reads either. But if the application returns without a response, or before another
        task has sent it, `@app.middleware("http")` raises "No response returned".
        """
        return None


class Stream(Abandonable, Protocol):
    """What sends a response whose body comes in pieces."""

    def wake(self) -> None:
        """Send more, if there is more: the client has read what was sent."""
        ...


class AsgiConnection(DisconnectListener):
    """One request of ASGI, for endpoints that respond on a Connection.

    A request is parked inside `receive()`, so that a wait is one task and no future. `receive()`
    returns when the client leaves, and also once the response is complete. So the response is sent
    from outside, at once, when the operation ends, and the request's task, which only waited, finds
    nothing left to do. A stream is sent by the task, so that a server whose `send` waits for a slow
    client holds the one piece that it was given.
    """

    __slots__ = ("_is_last", "_is_unsent", "_piece", "_scope", "_send", "_unread", "_work")

    context = None
    """That of the task."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, unread: UnreadResponses) -> None:
        """Prepare to respond through `send`; long responses are among `unread`."""
        # Not by way of the classes above: calls for each request.
        self._task = None
        self._receive = receive
        self._scope = scope
        self._send = send
        self._unread = unread
        # What the task does instead of waiting or, once it has waited, what it awaits besides: the
        # task that sends the response, where there has to be one.
        self._work: Awaitable[Any] | None = None
        # The next part of the body of a stream.
        self._piece = b""
        self._is_last = self._is_unsent = False

    @property
    def address(self) -> str | None:
        """The client's address as the server says it; None if it does not."""
        address: str = (self._scope.get("client") or ("",))[0]
        return address or None

    def served(self, parked: Abandonable | None) -> Awaitable[Any]:
        """Return what completes the request, for its own task; `parked` is pending no more then."""
        return self._work or self.until_disconnect(parked)

    def respond(self, response: RawResponse) -> None:
        """Send the response: from outside the task, once that waits."""
        if self._task is None:
            self._work = send_or_give_up(self._send, response, self._unread)
        else:
            # If it fails nothing else ends the task: uvicorn does not report a client that left
            # with another request pipelined behind this one.
            responding = send_response(self._send, response, self._unread)
            needs_task = len(response.body) > PIECE
            self._work = send_from_outside(
                self._send, responding, self.interrupt, needs_task=needs_task
            )

    def begin_stream(self, head: RawResponse, chunked_head: RawResponse, stream: Stream) -> None:
        """Send the head of a response whose body comes in pieces; the server makes the chunks."""
        self._work = self._stream(head, stream)

    @property
    def is_write_paused(self) -> bool:
        """True while a piece is not sent."""
        return self._is_unsent

    def send_piece(self, piece: bytes) -> None:
        """Send a part of the body, which is not empty."""
        self._piece += piece
        self._is_unsent = True
        self.interrupt()

    def end_stream(self, piece: bytes) -> None:
        """Send the last part of the body, which is not empty: the response is complete."""
        self.send_piece(piece)
        self._is_last = True

    async def _stream(self, head: RawResponse, stream: Stream) -> None:
        self._work = None
        try:
            if not may_have_body(self._scope):
                await self.read_empty_body()
            start = {"type": "http.response.start", "status": head.status, "headers": head.headers}
            await self._send(start)
            while self._piece or not self._is_last:
                if self._piece:
                    await self._send_piece(stream)
                elif await self.until_disconnect():
                    return
        except ResponseUnreadError:
            # It is in the log, and the server closes the connection of an incomplete response.
            return
        finally:
            stream.abandon()

    async def _send_piece(self, stream: Stream) -> None:
        body, self._piece = self._piece, b""
        with sending(len(body), self._unread):
            more = not self._is_last
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        # Servers take many small pieces without waiting: others have their turn.
        await asyncio.sleep(0)
        if not self._piece:
            self._is_unsent = False
            stream.wake()

    def _rest(self, was_pending: object) -> Awaitable[Any] | None:
        return send_or_give_up(self._send, LEFT, self._unread) if was_pending else self._work


class InterruptibleReceive:
    """`receive()` that returns None once `interrupt` is called; for several tasks at once."""

    __slots__ = ("_receive", "_waits")

    def __init__(self, receive: Receive) -> None:
        """Wait in `receive`."""
        self._receive = receive
        # {wait: None}: in the order of their begin.
        self._waits: dict[Interruptible, None] = {}

    async def __call__(self) -> Message | None:
        """Return the next message, or None if interrupted."""
        wait = Interruptible()
        wait._begin_wait()
        self._waits[wait] = None
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            if not wait._end_wait():
                raise
            return None
        finally:
            del self._waits[wait]
        # A message that comes in spite of an interruption counts.
        wait._end_wait()
        return message

    def interrupt(self) -> None:
        """End every wait that is under way; later ones are not affected."""
        for wait in self._waits:
            wait.interrupt()
