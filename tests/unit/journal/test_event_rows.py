"""What becomes of events: identifiers, pairs, samples, keys and times."""

import json
from typing import Any

import pyarrow as pa
import pytest

from purgatory import DelayedOperation, Status
from purgatory.journal import EVENT_SCHEMA, HashedKeys, KeyPrefixes
from purgatory.journal.event_rows import EventRows, RecordedJob
from purgatory.journal.labels import Labels
from purgatory.journal.schema import SAMPLE_KEY, SCHEMA_VERSION, VERSION_KEY
from purgatory.operations import JobEvent
from purgatory.operations.event_buffer import RawEvent
from purgatory.testing import MockClock

WALL_US = 1_700_000_000_000_000
WATCHED, FIRED, EXPIRED = Status.PENDING, Status.FIRED, Status.EXPIRED


class Named(DelayedOperation):
    kind = "order"


class HasOwn(DelayedOperation):
    """Its kind is not known from the class."""

    @property
    def kind(self) -> str:
        return "own"


@pytest.fixture
def clock() -> MockClock:
    clock = MockClock(start_ms=5_000)
    clock.set_wall(WALL_US // 1000)
    return clock


def make_rows(clock: MockClock, **options: Any) -> EventRows:
    options = {"sample": {}, "keys": None, "labels": Labels({})} | options
    rows = EventRows(clock=clock, **options)
    rows.begin("web-1")
    return rows


def event(
    identity: int,
    status: Status,
    *,
    at_us: int = 0,
    key: object = None,
    keys: tuple[object, ...] = ("a",),
    deadline_ms: int = 6_000,
    cls: type = Named,
) -> RawEvent:
    """An event `at_us` after the clock's start, which is 5 s."""
    return (identity, cls, status, keys, key, deadline_ms, 5_000_000_000 + at_us * 1_000)


def as_list(batch: pa.RecordBatch | None) -> list[dict[str, Any]]:
    assert batch is not None
    assert batch.schema.equals(EVENT_SCHEMA)
    assert batch.schema.metadata[VERSION_KEY] == SCHEMA_VERSION.encode()
    rows: list[dict[str, Any]] = batch.cast(_with_integers(batch.schema)).to_pylist()
    return rows


def _with_integers(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        column.with_type(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in schema
    )


def test_an_operation_has_a_row_for_its_beginning_and_one_for_its_end(clock: MockClock) -> None:
    """With the same identifier, and times that differ by what really passed."""
    rows = make_rows(clock)
    start = rows.begin("web-1")
    watched, fired = as_list(
        rows.batch(
            [
                event(1, WATCHED, at_us=7, keys=("a", "b")),
                event(1, FIRED, at_us=250_007, keys=("a", "b"), key="b"),
            ]
        )
    )
    nothing = dict.fromkeys(("lateness_us", "job_id", "handler", "attempt", "state", "error"))
    nothing["labels"] = None
    common = {
        **nothing,
        "operation_id": f"{start}-1",
        "kind": "order",
        "keys": ["a", "b"],
        "worker": "web-1",
        "watched_at": WALL_US + 7,
        "deadline": WALL_US + 1_000_000,
    }
    first = {"event": "watched", "seq": 1, "at": WALL_US + 7}
    last = {"event": "fired", "seq": 2, "at": WALL_US + 250_007}
    assert watched == {**common, **first, "completed_at": None, "completed_by": None}
    assert fired == {**common, **last, "completed_at": last["at"], "completed_by": "b"}
    assert rows.waiting == 0


def test_a_kind_is_named_by_the_class(clock: MockClock) -> None:
    """By its `kind`, where that is a string, or by its own name."""
    rows = make_rows(clock)
    events = [event(n, WATCHED, cls=cls) for n, cls in enumerate((Named, HasOwn, DelayedOperation))]
    kinds = [row["kind"] for row in as_list(rows.batch(events))]
    assert kinds == ["order", "HasOwn", "DelayedOperation"]


@pytest.mark.parametrize("leap_ms", [-3_600_000, -1, 1, 3_600_000])
def test_both_rows_of_an_operation_are_on_one_clock(clock: MockClock, leap_ms: int) -> None:
    """That of its beginning, wherever the wall clock has leapt to: its hour is the same in both.

    Else one that began as the hour was full is two operations to the pipeline, and one of them is
    lost. A wall clock of whole milliseconds leaps by as much as one of them each time it is asked.
    """
    rows = make_rows(clock)
    [watched] = as_list(rows.batch([event(1, WATCHED)]))
    clock.set_wall(clock.wall_ms() + leap_ms)
    clock.advance(61_000)
    [end] = as_list(rows.batch([event(1, EXPIRED, at_us=61_000_000)]))
    assert (end["watched_at"], end["deadline"]) == (watched["watched_at"], watched["deadline"])
    assert end["at"] == end["completed_at"] == end["watched_at"] + 61_000_000
    assert end["lateness_us"] == 60_000_000
    [after] = as_list(rows.batch([event(2, WATCHED, at_us=61_000_000)]))
    assert after["at"] == end["at"] + leap_ms * 1_000


def test_sampling_leaves_out_both_rows_or_neither(clock: MockClock) -> None:
    """It is decided once, and only for the kinds that it names."""
    rows = make_rows(clock, sample={"order": 0.5})
    numbers = range(400)
    watched = [event(n, WATCHED) for n in numbers]
    ended = [event(n, FIRED) for n in numbers]
    others = [event(n, status, cls=HasOwn) for n in numbers for status in (WATCHED, FIRED)]
    batch = rows.batch(watched + ended)
    assert batch is not None
    # Readers scale by it.
    assert json.loads(batch.schema.metadata[SAMPLE_KEY]) == {"order": 0.5}
    found = as_list(batch) + as_list(rows.batch(others))
    beginnings = [row["operation_id"] for row in found if row["event"] == "watched"]
    ends = [row["operation_id"] for row in found if row["event"] == "fired"]
    assert beginnings == ends
    assert sum(row["kind"] == "HasOwn" for row in found) == 800
    assert 0 < rows.sampled_out < 800
    assert (rows.sampled_out + len(found), rows.waiting) == (1_600, 0)
    assert sorted(row["seq"] for row in found) == list(range(1, len(found) + 1))


def test_behind_a_gap_an_id_is_trusted_only_with_its_keys(clock: MockClock) -> None:
    """Of those that are watched in one millisecond many have the same deadline."""
    rows = make_rows(clock)
    as_list(rows.batch([event(1, WATCHED), event(2, WATCHED)]))
    rows.note_gap()
    events = [event(1, FIRED, keys=("order:99",)), event(2, FIRED)]
    assert [row["operation_id"][-2:] for row in as_list(rows.batch(events))] == ["-2"]
    assert rows.unpaired == 1


def test_ends_lost_in_a_gap_are_forgotten(clock: MockClock) -> None:
    """A minute after its deadline nobody waits any more, sampled or not."""
    rows = make_rows(clock, sample={"HasOwn": 0.0})
    as_list(rows.batch([event(1, WATCHED), event(2, WATCHED, cls=HasOwn)]))
    as_list(rows.batch([event(3, WATCHED, deadline_ms=500_000)]))
    rows.note_gap()
    assert rows.waiting == 3
    clock.advance(120_000)
    assert rows.batch([]) is None
    assert rows.waiting == 1


def test_keys_that_are_no_valid_text_are_written_somehow(clock: MockClock) -> None:
    """A core of one's own takes any hashable; no row is lost over one."""
    rows = make_rows(clock)
    [row] = as_list(rows.batch([event(1, WATCHED, keys=(7, "ä", "\ud800", ("x",)))]))
    assert row["keys"] == ["7", "ä", "?", "('x',)"]


def job(status: Status, *, at_ns: int = 5_000_000_000, **changes: Any) -> RecordedJob:
    wall_ms = WALL_US // 1000
    fields: dict[str, Any] = {
        "status": status,
        "job_id": "j1",
        "handler": "mail",
        "state": "waiting",
        "keys": ("order:42",),
        "key": None,
        "attempt": 0,
        "error": None,
        "at_ms": wall_ms,
        "deferred_at_ms": wall_ms - 86_400_000,
        "deadline_ms": wall_ms + 2_000,
    }
    event = JobEvent(**fields | changes)
    assert event.at_ms is not None
    return RecordedJob(event, event.at_ms, at_ns)


def test_a_job_is_dated_by_its_store_and_named_by_its_id(clock: MockClock) -> None:
    """It may have been deferred by another worker, before this machine was started."""
    rows = make_rows(clock)
    ended = job(
        EXPIRED,
        state="failed",
        attempt=3,
        error="no route",
        at_ms=WALL_US // 1_000 + 2_003,
        at_ns=7_003_000_000,
        key="order:42",
    )
    operation, end = as_list(rows.batch([event(1, WATCHED), ended]))
    assert (operation["job_id"], operation["attempt"]) == (None, None)
    assert end | {"worker": "", "seq": 0} == {
        "operation_id": "job:j1",
        "event": "expired",
        "seq": 0,
        "kind": "job:mail",
        "keys": ["order:42"],
        "worker": "",
        "at": WALL_US + 2_003_000,
        "watched_at": WALL_US - 86_400_000_000,
        "deadline": WALL_US + 2_000_000,
        "completed_at": WALL_US + 2_003_000,
        "lateness_us": 3_000,
        "completed_by": "order:42",
        "job_id": "j1",
        "handler": "mail",
        "attempt": 3,
        "state": "failed",
        "error": "no route",
        "labels": None,
    }


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wait_is_as_long_as_the_clock_of_its_store_says(clock: MockClock, hours: int) -> None:
    """However far that is from the clock here, which may have been set a moment ago."""
    store_ms = WALL_US // 1000 + hours * 3_600_000
    ended = job(EXPIRED, at_ms=store_ms, deferred_at_ms=store_ms - 5_000, deadline_ms=store_ms - 3)
    [row] = as_list(make_rows(clock).batch([ended]))
    assert (row["at"], row["watched_at"]) == (WALL_US, WALL_US - 5_000_000)
    assert row["lateness_us"] == 3_000


def test_a_job_is_sampled_alike_everywhere(clock: MockClock) -> None:
    """By its id: who defers it and who runs it decide the same."""
    sample = {"job:mail": 0.5}
    one, other = make_rows(clock, sample=sample), make_rows(clock, sample=sample)
    chosen = [
        [
            number
            for number in range(200)
            if rows.batch([job(status, job_id=f"j{number}")]) is not None
        ]
        for rows, status in ((one, WATCHED), (other, FIRED))
    ]
    assert chosen[0] == chosen[1]
    assert 0 < len(chosen[0]) < 200


def test_a_hash_needs_its_secret() -> None:
    """The same key, the same hash; another secret, another hash; no secret that is too short."""
    one, other = HashedKeys(b"0" * 16), HashedKeys(b"1" * 16)
    assert one("a") == one("a") != other("a")
    assert len(one("order:42")) == 32
    for secret in (b"short", b"x" * 65):
        with pytest.raises(ValueError, match=f"has {len(secret)} bytes: give 16 to 64"):
            HashedKeys(secret)


def test_a_prefix_is_whole_segments() -> None:
    """A key that has no more than those stays as it is."""
    assert [KeyPrefixes()(key) for key in ("order:42:paid", "news", ":x")] == ["order", "news", ""]
    assert KeyPrefixes(2, separator="/")("a/b/c") == "a/b"
    with pytest.raises(ValueError, match="at least one"):
        KeyPrefixes(0)
    with pytest.raises(ValueError, match="separator is empty"):
        KeyPrefixes(separator="")
