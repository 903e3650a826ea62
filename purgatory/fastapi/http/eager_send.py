"""Sending a response from outside the task of its request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import partial
from types import FunctionType
from typing import Any, Final, Generic, TypeVar

from anyio import BrokenResourceError, ClosedResourceError
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Send

from purgatory.fastapi.http.bounds import UnreadResponses
from purgatory.fastapi.http.raw_response import RawResponse

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
_TRANSPARENT: Final = OBSERVERS | {"purgatory.fastapi.long_poll.endpoint_call"}


class ResponseUnreadError(Exception):
    """The client does not read its response."""


async def send_response(
    send: Send, response: RawResponse, unread: UnreadResponses | None = None
) -> None:
    """Send a whole response; in a task, if it is longer than PIECE.

    Raises ResponseUnreadError if `unread` gives it up, with the response incomplete.
    """
    if unread is not None and len(response.body) > PIECE:
        await _send_in_pieces(send, response, unread)
        return
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": response.headers,
        }
    )
    await send({"type": "http.response.body", "body": response.body})


async def send_or_give_up(send: Send, response: RawResponse, unread: UnreadResponses) -> None:
    """Send a whole response from the task of its request.

    If `unread` gives it up it stays incomplete, and the server closes the connection.
    """
    with suppress(ResponseUnreadError):
        await send_response(send, response, unread)


async def _send_in_pieces(send: Send, response: RawResponse, unread: UnreadResponses) -> None:
    body = response.body
    with sending(len(body), unread) as this:
        await send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": response.headers,
            }
        )
        for start in range(0, len(body), PIECE):
            end = start + PIECE
            piece = body[start:end]
            await send({"type": "http.response.body", "body": piece, "more_body": end < len(body)})
            this.unread_bytes = max(0, len(body) - end)


@contextmanager
def sending(size: int, unread: UnreadResponses) -> Iterator[_Sending]:
    """Count `size` bytes that the current task sends within; set `unread_bytes` as they are sent.

    Raises ResponseUnreadError if `unread` gives them up.
    """
    this = _Sending(size)
    try:
        unread.hold(this, size)
        if this.is_given_up:
            raise ResponseUnreadError
        yield this
    except asyncio.CancelledError:
        # Somebody else may have cancelled the task as well.
        if not this.is_given_up or this.task.uncancel() > 0:
            raise
        raise ResponseUnreadError from None
    finally:
        unread.release(this)


class _Sending:
    """A response that is sent by the current task."""

    __slots__ = ("is_given_up", "task", "unread_bytes")

    def __init__(self, size: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.unread_bytes = size
        self.is_given_up = False

    def give_up(self) -> None:
        """Have `sending` raise ResponseUnreadError."""
        self.is_given_up = True
        # While the task itself is in `hold`, a cancellation would come later.
        if self.task is not asyncio.current_task():
            self.task.cancel()


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
    own = unwrapped_send(send, _TRANSPARENT)
    run = run_in_task if needs_task or not _is_of_server(own) else send_eagerly
    return run(coroutine, on_failure)


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


def run_in_task(
    coroutine: Coroutine[Any, Any, None], on_failure: Callable[[], object]
) -> asyncio.Task[None]:
    """Run `coroutine` in a task, for what needs a current task; else as `send_eagerly`."""
    return finish_in_task(_finish(coroutine, on_failure))


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
