"""Whatever happens, every event is in exactly one complete file, or is counted as missing."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory import DelayedOperation, Status
from purgatory.journal import HashedKeys, Journal, KeyPrefixes, ParquetFiles, RetryPolicy
from purgatory.operations import DelayedOperationPurgatory, OperationEvent
from purgatory.testing import MockClock
from purgatory.timer import SystemTimer
from tests.journal_batches import complete_files, hidden_files, rows_in
from tests.nightly import by_night
from tests.patience import PATIENCE_S

RETRY = RetryPolicy(first_ms=1, max_ms=1)
# Each runs threads and writes files.
FEWER = settings(max_examples=by_night(60, 20))

Action = tuple[Literal["watch", "fire", "cancel", "pass", "flush", "fail", "leap"], int]

actions = st.lists(
    st.tuples(
        st.sampled_from(["watch", "watch", "watch", "fire", "cancel", "pass", "flush", "leap"]),
        st.integers(0, 400),
    ),
    max_size=30,
)
actions_with_failures = st.lists(
    st.tuples(
        st.sampled_from(["watch", "watch", "fire", "cancel", "pass", "flush", "fail", "fail"]),
        st.integers(0, 400),
    ),
    max_size=30,
)


class Operation(DelayedOperation):
    """Completes once it is checked."""

    def __init__(self, delay_ms: int, number: int) -> None:
        super().__init__(delay_ms)
        self.number = number
        self.completable = False

    def try_complete(self) -> bool:
        return self.force_complete() if self.completable else False

    def on_complete(self) -> None:
        pass


class Rare(Operation):
    kind = "rare"


class FailingFiles(ParquetFiles):
    """Its next groups of rows fail, at different moments."""

    failures = 0

    def _write_group(self) -> None:
        if self.failures and self._group_count:
            self.failures -= 1
            if self.failures % 2:
                super()._write_group()
            raise OSError("no space")
        super()._write_group()


class World:
    """A purgatory with a journal, and everything that it told a listener."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.clock = MockClock(start_ms=1_000)
        self.clock.set_wall(1_795_273_190_000)
        bounds = {name: options.pop(name) for name in ("max_rows", "group_rows") if name in options}
        self.files = FailingFiles(directory, **bounds)
        self.journal = Journal(
            self.files, clock=self.clock, retry=RETRY, close_timeout=PATIENCE_S, **options
        )
        # Without the operations themselves: their memory is to be that of others, later.
        self.told: list[tuple[str, list[str], object, str]] = []
        self.core = DelayedOperationPurgatory(
            "test", SystemTimer(clock=self.clock), listeners=[self.journal, self.hear]
        )
        # None for those who ended.
        self.operations: list[Operation | None] = []

    def hear(self, event: OperationEvent) -> None:
        status = "watched" if event.status is Status.PENDING else event.status.value
        kind = "rare" if isinstance(event.operation, Rare) else "Operation"
        self.told.append((status, [str(key) for key in event.keys], event.key, kind))

    def run(self, script: list[Action]) -> None:
        with self.journal:
            for action, number in script:
                getattr(self, f"do_{action}")(number)
                self.operations = [
                    None if operation is None or operation.is_completed else operation
                    for operation in self.operations
                ]
            self.core.shutdown()

    def do_watch(self, number: int) -> None:
        for _ in range(number % 40 + 1):
            kind = Rare if number % 3 else Operation
            operation = kind(number + 1, len(self.operations))
            self.operations.append(operation)
            self.core.try_complete_else_watch(operation, [f"op:{operation.number}", "all"])

    def do_fire(self, number: int) -> None:
        for operation in self.operations[number % 7 :: 3]:
            if operation is not None:
                operation.completable = True
                self.core.check_and_complete(f"op:{operation.number}")

    def do_cancel(self, number: int) -> None:
        self.core.cancel_for_key(f"op:{number}")

    def do_pass(self, number: int) -> None:
        self.clock.advance(number)
        self.core.timer.advance_clock()

    def do_flush(self, number: int) -> None:
        assert self.journal.flush(PATIENCE_S)

    def do_fail(self, number: int) -> None:
        self.files.failures = 1 + number % 3

    def do_leap(self, number: int) -> None:
        self.clock.set_wall(self.clock.wall_ms() + (200 - number) * 60_000)

    def check(self) -> list[dict[str, Any]]:
        """Check what always holds; return the rows."""
        rows = rows_in(self.directory)
        statistics = self.journal.statistics()
        [sink] = statistics.sinks
        assert statistics.buffered == 0
        assert statistics.rows + statistics.dropped + statistics.sampled_out == len(self.told)
        assert (sink.written + sink.dropped, sink.pending) == (statistics.rows, 0)
        assert (sink.written, sink.files) == (len(rows), len(complete_files(self.directory)))
        assert hidden_files(self.directory) == []
        repeats = Counter((row["operation_id"], row["event"]) for row in rows)
        assert set(repeats.values()) <= {1}
        for row in rows:
            self._check_row(row)
        return rows

    def _check_row(self, row: dict[str, Any]) -> None:
        is_end = row["event"] != "watched"
        assert (row["completed_at"] is not None) == is_end
        assert row["at"] == (row["completed_at"] if is_end else row["watched_at"])
        assert row["at"] >= row["watched_at"]
        assert (row["lateness_us"] is not None) == (row["event"] == "expired")
        assert (row["lateness_us"] or 0) >= 0


@given(script=actions, max_rows=st.integers(1, 200), group_rows=st.integers(1, 50))
@FEWER
def test_every_event_is_in_exactly_one_file(
    script: list[Action], max_rows: int, group_rows: int
) -> None:
    """Where there is room for all, nothing is missing, and every row says what happened."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), max_rows=max_rows, group_rows=group_rows)
        world.run(script)
        rows = world.check()
    assert len(rows) == len(world.told)
    assert sorted(row["seq"] for row in rows) == list(range(1, len(rows) + 1))
    by_seq = sorted(rows, key=lambda row: row["seq"])
    identifiers: dict[str, str] = {}
    for row, told in zip(by_seq, world.told, strict=True):
        assert (row["event"], row["keys"], row["completed_by"], row["kind"]) == told
        # One identifier an operation, and one operation an identifier.
        assert identifiers.setdefault(row["keys"][0], row["operation_id"]) == row["operation_id"]
    assert len(set(identifiers.values())) == len(identifiers) == len(world.operations)


@given(script=actions, share=st.floats(0, 1), max_buffered=st.integers(1, 60))
@FEWER
def test_rows_come_in_pairs(script: list[Action], share: float, max_buffered: int) -> None:
    """However much is sampled out and dropped before, no end is without its beginning."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), sample={"rare": share}, max_buffered=max_buffered)
        # The sink is never short of room: what is dropped is dropped by the buffer.
        world.journal._sinks[0]._max_rows = 10**9
        world.run(script)
        rows = world.check()
    beginnings = {row["operation_id"]: row["keys"] for row in rows if row["event"] == "watched"}
    ends = {row["operation_id"]: row["keys"] for row in rows if row["event"] != "watched"}
    assert ends.items() <= beginnings.items()


@given(script=actions_with_failures, max_rows=st.integers(1, 200), group_rows=st.integers(1, 50))
@FEWER
def test_what_a_failing_disk_loses_is_counted(
    script: list[Action], max_rows: int, group_rows: int
) -> None:
    """To the row: a file that is there is whole, and what is in none is counted."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), max_rows=max_rows, group_rows=group_rows)
        world.run(script)
        rows = world.check()
    keys = [(row["event"], *row["keys"]) for row in rows]
    assert len(set(keys)) == len(keys)


@given(keys=st.lists(st.text(min_size=1), unique=True, max_size=20), secret=st.binary(min_size=16))
def test_a_hash_tells_keys_apart_and_a_prefix_is_a_beginning(
    keys: list[str], secret: bytes
) -> None:
    """What is made of a key depends on nothing else."""
    keys = [key for key in keys if key.isprintable()]
    hashed, prefixes = HashedKeys(secret[:64]), KeyPrefixes(2, separator="a")
    assert len({hashed(key) for key in keys}) == len(keys)
    for key in keys:
        assert key.startswith(prefixes(key))
        assert prefixes(key).count("a") <= 1
        assert prefixes(prefixes(key)) == prefixes(key)
