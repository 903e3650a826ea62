"""Ctrl-C, as a person means it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, and do nothing else, until the end of a `with`.

    Spark's own handler asks the JVM to cancel its jobs in the midst of another question to it:
    neither is answered then, and py4j logs a trace of each. Of a plain interrupt it logs some too;
    what it logs is kept back, as it raises it besides. To cancel what runs is up to the caller.
    Does nothing beside the main thread, which is the only one that signals come to.
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
    # py4j has loggers of its own, but for an interrupt.
    return record.module != "java_gateway"
