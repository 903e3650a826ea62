"""Ctrl-C while Spark is at work."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from purgatory.pipeline.cli.command import plain_interrupts


def noisy(*_: object) -> None:
    """Stand in for Spark's handler."""
    raise AssertionError("Spark was asked to cancel its jobs")


@pytest.fixture(autouse=True)
def spark_has_a_handler() -> Iterator[None]:
    """As it has since its session was made."""
    before = signal.signal(signal.SIGINT, noisy)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted() -> None:
    """Be interrupted in the midst of a call to Java; py4j logs it as here."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        for module in ("java_gateway", "another"):
            record = {"module": module, "msg": module, "levelno": logging.ERROR}
            logging.getLogger().handle(logging.makeLogRecord(record))
        logging.getLogger("py4j.clientserver").error("a broken pipe")


def test_it_is_an_interrupt_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Without Spark's handler, and without the trace that py4j logs; then all is as it was."""
    with pytest.raises(KeyboardInterrupt), plain_interrupts():
        interrupted()
    assert caplog.messages == ["another"]
    with pytest.raises(AssertionError, match="Spark was asked"):
        interrupted()
    assert caplog.messages == ["another", "java_gateway", "another", "a broken pipe"]


def test_other_threads_have_no_signals() -> None:
    """There nothing is changed, and nothing fails."""
    found: list[object] = []

    def look() -> None:
        with plain_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [noisy]
