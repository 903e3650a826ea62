"""Interrupts (Ctrl-C) while Spark works."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, and do nothing else, until the end of a `with`.

    Spark's own handler asks the JVM to cancel its jobs in the middle of another call to it: both
    fail then, and py4j logs a trace of each. py4j's logs of the interrupt itself are suppressed, as
    it is raised besides. Cancelling jobs is up to the caller. Does nothing outside the main thread,
    the only one that receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    root, py4j = logging.getLogger(), logging.getLogger("py4j")
    level = py4j.level
    root.addFilter(_is_of_others)
    py4j.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        py4j.setLevel(level)
        root.removeFilter(_is_of_others)
        signal.signal(signal.SIGINT, before)


def _is_of_others(record: logging.LogRecord) -> bool:
    # py4j logs interrupts to the root logger rather than to its own.
    return record.module != "java_gateway"
