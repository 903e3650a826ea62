"""SIGTERM and SIGINT: the drain begins before the server waits for its requests."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from purgatory.purgatory import Purgatory

logger = logging.getLogger("purgatory.fastapi")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def drain_on_stop_signals(
    purgatory: Purgatory, on_drain: Callable[[], object] | None = None
) -> Iterator[None]:
    """Drain `purgatory` on SIGTERM and SIGINT, then call the handler that was there before.

    `on_drain` is called on the loop as the drain begins.

    Servers run the lifespan's shutdown only after the last response; for a parked request that may
    be a minute, or an empty reply (uvicorn #2829). Enter it in the lifespan's start-up: by then the
    server has installed its handlers, which are called next. Does nothing outside the main thread,
    which alone receives signals, and for a signal without a handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = [_Handler(purgatory, number, on_drain) for number in STOP_SIGNALS]
    for handler in handlers:
        handler.install()
    try:
        yield
    finally:
        for handler in handlers:
            handler.remove()


class _Handler:
    """The handler of one signal, in front of the one that was there."""

    def __init__(
        self,
        purgatory: Purgatory,
        number: signal.Signals,
        on_drain: Callable[[], object] | None,
    ) -> None:
        self._purgatory = purgatory
        self._on_drain = on_drain
        self._number = number
        self._loop = asyncio.get_running_loop()
        self._previous: Any = None
        self._is_removed = False

    def install(self) -> None:
        previous = signal.getsignal(self._number)
        # With SIG_DFL, SIG_IGN or a handler that is not Python's there is no orderly shutdown.
        if callable(previous):
            self._previous = previous
            signal.signal(self._number, self._handle)

    def remove(self) -> None:
        # A handler that was installed in front of ours since then stays, and may call ours: the
        # purgatory may be open on another loop by then.
        self._is_removed = True
        if self._previous is not None and signal.getsignal(self._number) == self._handle:
            signal.signal(self._number, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Called between two bytecodes of any code: only the loop may use the purgatory.
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            # The loop is closed: another handler still calls this one.
            pass
        self._previous(number, frame)

    def _drain(self) -> None:
        if self._purgatory.is_open and not self._is_removed:
            # A future that need not be awaited: the drain goes on by itself.
            _ = self._purgatory.begin_drain()
            if self._on_drain is not None:
                self._on_drain()
