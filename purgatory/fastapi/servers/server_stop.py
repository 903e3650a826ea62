"""The drain begins when the server begins to stop, before it waits for its requests."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from types import FrameType
from typing import Any, Final

from purgatory.fastapi.servers.workers import SERVERS
from purgatory.purgatory import Purgatory

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# As often as uvicorn itself looks whether it has to stop.
POLL_S: Final = 0.1


@contextmanager
def drain_on_stop(
    purgatory: Purgatory, on_drain: Callable[[], object] | None = None
) -> Iterator[None]:
    """Drain `purgatory` when the server stops: on SIGTERM and SIGINT, or once it listens no more.

    `on_drain` is called on the loop as the drain begins. Enter it in the lifespan's start-up.

    Servers run the lifespan's shutdown only after the last response; for a parked request that may
    be a minute, or an empty reply (uvicorn #2829).

    On a signal, the handler that was there before is called next: by the start-up, the server has
    installed its own. Nothing is installed outside the main thread, which alone receives signals,
    and for a signal without a handler.

    A server also stops without a signal: after a number of requests, or because the code that runs
    it says so. uvicorn, gunicorn and hypercorn close their listening sockets first, and then wait.
    """
    drain = _Drain(purgatory, on_drain)
    is_main_thread = threading.current_thread() is threading.main_thread()
    handlers = [_Handler(drain, number) for number in STOP_SIGNALS if is_main_thread]
    find = _find_server()
    listeners = None if find is None else _Listeners(find, drain)
    for handler in handlers:
        handler.install()
    try:
        yield
    finally:
        drain.is_over = True
        for handler in handlers:
            handler.remove()
        if listeners is not None:
            listeners.cancel()


class _Drain:
    """Begins the drain, once, while the lifespan lasts."""

    def __init__(self, purgatory: Purgatory, on_drain: Callable[[], object] | None) -> None:
        self._purgatory = purgatory
        self._on_drain = on_drain
        self._has_begun = False
        # Then the purgatory may be open on another loop.
        self.is_over = False

    def begin(self) -> None:
        if self._has_begun or self.is_over or not self._purgatory.is_open:
            return
        self._has_begun = True
        # A future that need not be awaited: the drain goes on by itself.
        _ = self._purgatory.begin_drain()
        if self._on_drain is not None:
            self._on_drain()


class _Handler:
    """The handler of one signal, in front of the one that was there."""

    def __init__(self, drain: _Drain, number: signal.Signals) -> None:
        self._drain = drain
        self._number = number
        self._loop = asyncio.get_running_loop()
        # A signal interrupts any task, whose context is not that of the drain.
        self._context = copy_context()
        self._previous: Any = None

    def install(self) -> None:
        previous = signal.getsignal(self._number)
        # With SIG_DFL, SIG_IGN or a handler that is not Python's there is no orderly shutdown.
        if callable(previous):
            self._previous = previous
            signal.signal(self._number, self._handle)

    def remove(self) -> None:
        # A handler that was installed in front of ours since then stays, and may call ours.
        if self._previous is not None and signal.getsignal(self._number) == self._handle:
            signal.signal(self._number, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Called between two bytecodes of any code: only the loop may use the purgatory.
        try:
            self._loop.call_soon_threadsafe(self._drain.begin, context=self._context)
        except RuntimeError:
            # The loop is closed: another handler still calls this one.
            pass
        self._previous(number, frame)


class _Listeners:
    """Begins the drain once the server has closed a listening socket.

    It opens them after the start-up, and nobody is told when they close: they are polled.
    """

    def __init__(self, find: Callable[[], Any], drain: _Drain) -> None:
        """Poll the sockets that `find` returns, None before there are any."""
        self._find = find
        self._drain = drain
        self._were_open = False
        self._timer = asyncio.get_running_loop().call_later(POLL_S, self._poll)

    def cancel(self) -> None:
        self._timer.cancel()

    def _poll(self) -> None:
        listeners = self._find() or ()
        is_open = bool(listeners) and all(each.is_serving() for each in listeners)
        if self._were_open and not is_open:
            self._drain.begin()
            return
        self._were_open = is_open
        self._timer = asyncio.get_running_loop().call_later(POLL_S, self._poll)


def _find_server() -> Callable[[], Any] | None:
    """Return what finds the listening sockets of the server that runs the lifespan, if any.

    Servers tell the application nothing. In their code, the object or the function that waits for
    the start-up has the lifespan as `lifespan`, and will have the sockets as `servers`.
    """
    callers = list(_callers())
    lifespans = [frame.f_locals.get("self") for frame in callers]
    found = None
    for frame in (*callers, *_awaiting()):
        find = _Server(frame)
        if find.lifespan is None:
            continue
        if any(find.lifespan is each for each in lifespans):
            return find
        # Other code runs the lifespan, in a task of its own.
        found = found or find
    return found


class _Server:
    """A frame of a server, which may be the one that waits for a lifespan."""

    def __init__(self, frame: FrameType) -> None:
        names = frame.f_locals
        # uvicorn and gunicorn: of an object.
        self._owner = names.get("self")
        self._frame = None
        self.lifespan = getattr(self._owner, "lifespan", None)
        if self.lifespan is None and "lifespan" in names:
            # hypercorn: of a function.
            self._frame = frame
            self.lifespan = names["lifespan"]

    def __call__(self) -> Any:
        if self._frame is not None:
            return self._frame.f_locals.get("servers")
        return getattr(self._owner, "servers", None)


def _callers() -> Iterator[FrameType]:
    """Yield the frames of servers whose code calls this, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if _is_of_server(frame):
            yield frame
        frame = frame.f_back


def _awaiting() -> Iterator[FrameType]:
    """Yield the frames of servers that wait in some task of the running loop."""
    for task in asyncio.all_tasks():
        coroutine: Any = task.get_coro()
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            if _is_of_server(frame):
                yield frame
            coroutine = coroutine.cr_await


def _is_of_server(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in SERVERS
