"""Signals while an engine is at work."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from purgatory.pipeline.__main__ import plain_interrupts
from tests.synthetic_journal import SyntheticJournal


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_of_duckdb(tmp_path: Path, number: int) -> None:
    """With its status and in a word; neither temporary files nor half a table are left."""
    temporary, out = tmp_path / "temporary", tmp_path / "out"
    temporary.mkdir()
    SyntheticJournal(operations=200, hours=0.1).write(tmp_path / "journal")
    program = (
        "import os, sys; from purgatory.pipeline.__main__ import main; "
        "from purgatory.pipeline.sql.duck import DuckRunner; write = DuckRunner._copy\n"
        "def copy(runner, query, folder, path, options=''):\n"
        "    write(runner, query, folder, path, options)\n"
        f"    os.kill(os.getpid(), {number})\n"
        "    runner.connection.execute('SELECT sum(range) FROM range(1e11::BIGINT)')\n"
        "DuckRunner._copy = copy; sys.exit(main())"
    )
    places = ["--journal", str(tmp_path / "journal"), "--out", str(out), "--engine", "duckdb"]
    done = subprocess.run(
        [sys.executable, "-c", program, "outcomes", *places],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        128 + number,
        "outcomes: interrupted",
    )
    assert [*temporary.iterdir()] == [] == [*out.rglob("*.parquet")]


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
