"""The server that runs in this process: its workers, its errors at start, and its stop."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from types import FrameType
from typing import Any, Final

from purgatory.errors import SeveralWorkersError, SignalsNotReadyError
from purgatory.job_errors import StoreNotReadyError
from purgatory.purgatory import Purgatory


def check_workers(
    argv: Sequence[str], environ: Mapping[str, str], *, allow_separate_workers: bool
) -> None:
    """Raise SeveralWorkersError if several workers would each have their own signals.

    A fire in one worker would not wake a request that is parked in another. Call it where the
    server starts the application.
    """
    count = running_workers(sys._getframe(), argv, environ)
    if count > 1 and not allow_separate_workers:
        raise SeveralWorkersError(
            f"{count} workers would each keep signals in their own memory, where a fire wakes only "
            "the requests that are parked in the same worker: share them, "
            'Purgatory(signals=RedisSignals("redis://localhost:6379")), or run one worker, or pass '
            "allow_separate_workers=True if each worker has its own clients and keys "
            "(docs/how-to/several-workers.md)"
        )


def running_workers(
    frame: FrameType | None, argv: Sequence[str], environ: Mapping[str, str]
) -> int:
    """Return how many workers the server whose code calls `frame` has, or 1.

    Servers read the number from options, variables, files and arguments of functions, and tell the
    application nothing: it is in the objects of the code that runs the event loop.
    """
    for each in _outward(frame):
        if _is_of_server(each):
            for config in _configurations(_module(each), each.f_locals):
                count = getattr(config, "workers", None)
                if isinstance(count, int):
                    return max(1, count)
    return _granian_workers(argv, environ)


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that call it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _is_of_server(frame: FrameType) -> bool:
    return _module(frame).partition(".")[0] in SERVERS


SERVERS = frozenset({"uvicorn", "gunicorn", "hypercorn", "granian"})


def _configurations(module: str, names: Mapping[str, Any]) -> Iterator[object]:
    """Yield what may have the number of workers, of a function of a server."""
    if module == "uvicorn._subprocess":
        # Not uvicorn.Server: without a supervisor, it is one process whatever its configuration.
        config = names.get("config")
        # The reloader ignores the number.
        if not getattr(config, "should_reload", False):
            yield config
    elif module == "hypercorn.asyncio.run":
        yield names.get("config")
    elif module.startswith("gunicorn."):
        yield getattr(names.get("self"), "cfg", None)
    elif module == "granian.server.common":
        # A forked worker has the frames of its parent.
        yield names.get("self")


def _granian_workers(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Return the number in granian's command line or variable: its spawned workers lack it."""
    if not argv or "granian" not in argv[0]:
        return 1
    text = environ.get("GRANIAN_WORKERS", "")
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name == "--workers":
            text = value if equals else "".join(argv[position + 1 : position + 2])
    return int(text) if text.isdecimal() else 1


START_ERRORS: Final = (SeveralWorkersError, SignalsNotReadyError, StoreNotReadyError)
"""Errors that say what to correct, and where."""


def log_in_one_sentence(error: Exception) -> None:
    """Let uvicorn log `error`, which ends a lifespan, as what it says.

    Starlette sends the server the text of a traceback, which uvicorn logs.
    """
    logger, sentence = logging.getLogger("uvicorn.error"), str(error)

    def shorten(record: logging.LogRecord) -> bool:
        if sentence in record.getMessage():
            record.msg, record.args = sentence, ()
            logger.removeFilter(shorten)
        return True

    # The process is about to end, and an application under test starts few times.
    logger.addFilter(shorten)
    if multiprocessing.parent_process() is not None:
        # For hypercorn and granian, which print what was raised: the last lines say it all.
        sys.tracebacklimit = 0


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
    # Then the purgatory may be open on another loop.
    is_over = has_begun = False

    def begin() -> None:
        nonlocal has_begun
        if has_begun or is_over or not purgatory.is_open:
            return
        has_begun = True
        # A future that need not be awaited: the drain goes on by itself.
        _ = purgatory.begin_drain()
        if on_drain is not None:
            on_drain()

    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                stack.enter_context(_on_signal(number, begin))
        if (find := _find_server()) is not None:
            stack.enter_context(_on_closed_sockets(find, begin))
        try:
            yield
        finally:
            is_over = True


@contextmanager
def _on_signal(number: signal.Signals, begin: Callable[[], object]) -> Iterator[None]:
    """Call `begin` on the loop on a signal, and then the handler that was there."""
    previous: Any = signal.getsignal(number)
    # With SIG_DFL, SIG_IGN or a handler that is not Python's there is no orderly shutdown.
    if not callable(previous):
        yield
        return
    # A signal interrupts any task, whose context is not that of the drain.
    loop, context = asyncio.get_running_loop(), copy_context()

    def handle(number: int, frame: FrameType | None) -> None:
        # Called between two bytecodes of any code: only the loop may use the purgatory.
        try:
            loop.call_soon_threadsafe(begin, context=context)
        except RuntimeError:
            # The loop is closed: another handler still calls this one.
            pass
        previous(number, frame)

    signal.signal(number, handle)
    try:
        yield
    finally:
        # A handler that was installed in front of ours since then stays, and may call ours.
        if signal.getsignal(number) is handle:
            signal.signal(number, previous)


@contextmanager
def _on_closed_sockets(find: Callable[[], Any], begin: Callable[[], object]) -> Iterator[None]:
    """Call `begin` once the server has closed a listening socket of those that `find` returns.

    It opens them after the start-up, and nobody is told when they close: they are polled.
    """
    loop = asyncio.get_running_loop()
    were_open = False
    timer: asyncio.TimerHandle | None = None

    def poll() -> None:
        nonlocal timer, were_open
        listeners = find() or ()
        # Also if the server has opened and closed them since the last time.
        is_closed = not all(each.is_serving() for each in listeners)
        if is_closed or (were_open and not listeners):
            begin()
            return
        were_open = bool(listeners)
        timer = loop.call_later(POLL_S, poll)

    timer = loop.call_later(POLL_S, poll)
    try:
        yield
    finally:
        timer.cancel()


def _find_server() -> Callable[[], Any] | None:
    """Return what finds the listening sockets of the server that runs the lifespan, if any.

    Servers tell the application nothing. In their code, the object or the function that waits for
    the start-up has the lifespan as `lifespan`, and will have the sockets as `servers`.
    """
    callers = [frame for frame in _outward(sys._getframe()) if _is_of_server(frame)]
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


def _awaiting() -> Iterator[FrameType]:
    """Yield the frames of servers that wait in some task of the running loop."""
    for task in asyncio.all_tasks():
        coroutine: Any = task.get_coro()
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            if _is_of_server(frame):
                yield frame
            coroutine = coroutine.cr_await
