"""The journal: what an operation's life leaves, and what happens where writing does not."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from purgatory import Status
from purgatory.journal import (
    EVENT_SCHEMA,
    EVENTS,
    SCHEMA_VERSION,
    Journal,
    ParquetFiles,
    Sink,
)
from purgatory.operations import DelayedOperationPurgatory
from purgatory.testing import MockClock
from purgatory.timer import Clock
from tests.cases import cases
from tests.journal_batches import rows_in
from tests.patience import PATIENCE_S
from tests.unit.operations.noted_operation import MakeCore, Operation, watch

JOURNAL_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "journal.md"


def watch_and_fire(core: DelayedOperationPurgatory, count: int) -> list[Operation]:
    """Return the operations: while they are held, none has the id of another."""
    operations = []
    for number in range(count):
        operations.append(watch(core, f"k{number}"))
        operations[-1].completable = True
        core.check_and_complete(f"k{number}")
    return operations


class ListSink(Sink):
    """Keeps batches; blocks while its gate is closed."""

    name = "list"

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.gate = threading.Event()
        self.gate.set()
        self.is_blocked = threading.Event()

    def open(self, writer: str, clock: Clock) -> None:
        pass

    def write(self, batch: pa.RecordBatch) -> None:
        if not self.gate.is_set():
            self.is_blocked.set()
            assert self.gate.wait(PATIENCE_S)
        self.batches.append(batch)
        self.roll()

    def roll(self) -> None:
        self.written = sum(batch.num_rows for batch in self.batches)

    def abandon(self) -> int:
        return 0


@pytest.fixture
def sink() -> Iterator[ListSink]:
    sink = ListSink()
    yield sink
    sink.gate.set()


def test_every_step_is_written(make_core: MakeCore, clock: MockClock, tmp_path: Path) -> None:
    """Each outcome, with key and lateness; nothing else."""
    with Journal(ParquetFiles(tmp_path), worker="w", clock=clock) as journal:
        core = make_core(journal)
        for key in ("fired", "cancelled"):
            watch(core, key).completable = True
        watch(core, "expired", delay_ms=20)
        watch(core, "drained", delay_ms=5_000)
        watch(core, "outdated")._cancel(Status.OUTDATED)
        core.check_and_complete("fired")
        core.cancel_for_key("cancelled")
        clock.advance(23)
        core.timer.advance_clock()
        core.shutdown()
    rows = rows_in(tmp_path)
    assert [row["event"] for row in rows[:5]] == ["watched"] * 5
    ends = {row["event"]: row for row in rows[5:]}
    assert {event: row["keys"] for event, row in ends.items()} == {
        event: [event] for event in EVENTS[1:]
    }
    assert {row["operation_id"] for row in rows[:5]} == {row["operation_id"] for row in rows[5:]}
    assert {(row["kind"], row["worker"]) for row in rows} == {("Operation", "w")}
    assert ends["fired"]["completed_by"] == "fired"
    assert ends["cancelled"]["completed_by"] is ends["outdated"]["completed_by"] is None
    assert ends["expired"]["lateness_us"] == 3_000
    statistics = journal.statistics()
    assert (statistics.rows, statistics.buffered, statistics.dropped) == (10, 0, 0)
    assert (statistics.sinks[0].written, statistics.sinks[0].pending) == (10, 0)


def test_what_the_buffer_cannot_take_is_counted_and_said_once(
    make_core: MakeCore, clock: MockClock, sink: ListSink, caplog: pytest.LogCaptureFixture
) -> None:
    """Operations have both rows or none; the purgatory goes on as if nothing were."""
    journal = Journal(sink, max_buffered=5, clock=clock)
    core = make_core(journal)
    with caplog.at_level(logging.INFO, "purgatory.journal"):
        held = watch_and_fire(core, 10)
        with journal:
            assert journal.flush(PATIENCE_S)
            held.append(watch(core, "z"))
            assert journal.flush(PATIENCE_S)
            held[-1].force_complete()
    statistics = journal.statistics()
    # The fifth event is the beginning of the third operation, whose end was dropped.
    assert (statistics.rows, statistics.dropped, statistics.waiting) == (7, 15, 1)
    assert statistics.sinks[0].written == 7
    messages = [record.getMessage() for record in caplog.records]
    assert sum("the journal is too slow" in message for message in messages) == 1
    assert sum("15 events were dropped" in message for message in messages) == 1


def test_a_slow_sink_keeps_nobody_waiting(
    make_core: MakeCore,
    clock: MockClock,
    sink: ListSink,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it has no room for is dropped, counted and said once; the other sink goes on."""
    journal = Journal(sink, ParquetFiles(tmp_path), max_buffered=100, clock=clock)
    core = make_core(journal)
    with caplog.at_level(logging.INFO, "purgatory.journal"), journal:
        sink.gate.clear()
        watch_and_fire(core, 10)
        assert sink.is_blocked.wait(PATIENCE_S)
        handed_on = 20
        while not journal.statistics().sinks[0].dropped:
            watch_and_fire(core, 40)
            handed_on += 80
            assert journal.flush(0.01) is False
            # Until there is room for the next ones, however busy the machine is.
            while journal.statistics().buffered:
                assert journal.flush(0.01) is False
        sink.gate.set()
        assert journal.flush(PATIENCE_S)
    slow, files = journal.statistics().sinks
    assert slow.dropped > 0
    assert slow.written + slow.dropped == handed_on == files.written + files.dropped
    assert len(rows_in(tmp_path)) == files.written > 0
    assert sum(batch.num_rows for batch in sink.batches) == slow.written
    messages = [record.getMessage() for record in caplog.records]
    assert sum("list is too slow" in message for message in messages) == 1


def test_closing_does_not_wait_for_a_sink_that_hangs(
    make_core: MakeCore, clock: MockClock, sink: ListSink, caplog: pytest.LogCaptureFixture
) -> None:
    """It says how many rows are dropped; the thread keeps no process from ending."""
    journal = Journal(sink, close_timeout=0.2, clock=clock)
    journal.open()
    sink.gate.clear()
    watch_and_fire(make_core(journal), 1)
    assert sink.is_blocked.wait(PATIENCE_S)
    journal.close()
    journal.close()
    with pytest.raises(RuntimeError, match="still writes what was recorded before"):
        journal.open()
    assert "did not finish within" in caplog.text
    assert "2 rows are dropped" in caplog.text
    [thread] = [thread for thread in threading.enumerate() if "journal list" in thread.name]
    assert thread.daemon
    sink.gate.set()
    thread.join(PATIENCE_S)


def test_a_rule_for_keys_that_fails_stops_nothing(
    make_core: MakeCore, clock: MockClock, sink: ListSink, caplog: pytest.LogCaptureFixture
) -> None:
    """The events are counted as dropped, and the thread goes on."""

    def rule(key: str) -> str:
        if key == "bad":
            raise LookupError(key)
        return key.upper()

    journal = Journal(sink, keys=rule, clock=clock)
    core = make_core(journal)
    with journal:
        watch(core, "bad")
        assert journal.flush(PATIENCE_S)
        watch(core, "good")
        assert journal.flush(PATIENCE_S)
        core.shutdown()
    statistics = journal.statistics()
    assert statistics.dropped >= 1
    [keys] = {tuple(row["keys"]) for batch in sink.batches for row in batch.to_pylist()}
    assert keys == ("GOOD",)
    assert "1 events cannot be written" in caplog.text


@cases(
    "options, complaint",
    [
        ({"sample": {"park": 1.5}}, "sample of 'park' is 1.5: give a share from 0 to 1"),
        ({"sample": {"park": float("nan")}}, "sample of 'park' is nan"),
        ({"max_buffered": 0}, "max_buffered is 0: give 1 or more"),
        ({"close_timeout": 0}, "close_timeout is 0: give a number of seconds above zero"),
        ({"close_timeout": float("inf")}, "close_timeout is inf"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], complaint: str, sink: ListSink
) -> None:
    """With what is allowed."""
    with pytest.raises(ValueError, match=complaint):
        Journal(sink, **options)


def test_a_journal_that_is_open_is_not_opened_and_has_a_sink(sink: ListSink) -> None:
    """One start at a time."""
    with pytest.raises(ValueError, match="needs a sink"):
        Journal()
    journal = Journal(sink, worker="w")
    assert (repr(journal), journal.flush()) == ("<Journal to list>", False)
    with journal, pytest.raises(RuntimeError, match="is open already: close it first"):
        journal.open()


def test_the_docs_name_every_column() -> None:
    """And the version of the schema."""
    page = JOURNAL_PAGE.read_text()
    assert [name for name in EVENT_SCHEMA.names if f"`{name}`" not in page] == []
    assert f"`purgatory.schema` = `{SCHEMA_VERSION}`" in page
