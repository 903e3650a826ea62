"""The journal in a Redis Stream, on a real server that comes and goes."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from purgatory.journal import EVENT_SCHEMA, SCHEMA_VERSION, Journal, ParquetFiles, RetryPolicy
from purgatory.journal.redis_stream import RedisStream
from purgatory.operations import DelayedOperationPurgatory
from purgatory.testing import MockClock
from tests.journal_batches import journal_clock, rows_in
from tests.patience import PATIENCE_S
from tests.unit.operations.noted_operation import MakeCore, watch
from tests.valkey_server import ValkeyServer

RETRY = RetryPolicy(first_ms=10, max_ms=10)


@pytest.fixture
def clock() -> MockClock:
    return journal_clock()


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with tempfile.TemporaryDirectory() as directory, ValkeyServer(Path(directory)) as server:
        yield server


def read(server: ValkeyServer, stream: str) -> list[dict[str, str]]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        entries: Any = client.xrange(stream)
        return [fields for _, fields in entries]


def watch_and_cancel(core: DelayedOperationPurgatory, count: int) -> None:
    for number in range(count):
        watch(core, f"k{number}", "all")
        core.cancel_for_key(f"k{number}")


def test_the_stream_has_the_rows_of_the_files(
    server: ValkeyServer, clock: MockClock, make_core: MakeCore, tmp_path: Path
) -> None:
    """Field by field; what is null is not there."""
    sinks = (RedisStream(server.url, stream="s"), ParquetFiles(tmp_path))
    with Journal(*sinks, clock=clock) as journal:
        core = make_core(journal)
        watch_and_cancel(core, 3)
        watch(core, "late", delay_ms=20)
        clock.advance(25)
        core.timer.advance_clock()
    entries = read(server, "s")
    assert {entry.pop("schema") for entry in entries} == {SCHEMA_VERSION}
    rows = rows_in(tmp_path)
    assert len(entries) == len(rows) == 8
    for entry, row in zip(entries, rows, strict=True):
        present = {name: value for name, value in row.items() if value is not None}
        assert set(entry) == set(present) <= set(EVENT_SCHEMA.names)
        assert json.loads(entry["keys"]) == row["keys"]
        assert entry["operation_id"] == row["operation_id"]
        assert int(entry["at"]) == row["at"].timestamp() * 1_000_000
        assert int(entry["seq"]) == row["seq"]
    assert entries[-1]["lateness_us"] == "5000"
    stream = journal.statistics().sinks[0]
    assert (stream.written, stream.pending, stream.files) == (8, 0, 0)
    assert stream.bytes > 0


def test_the_stream_is_bounded(server: ValkeyServer, clock: MockClock, make_core: MakeCore) -> None:
    """To about its maximum: the server removes whole nodes, of 100 entries by default."""
    with Journal(RedisStream(server.url, stream="s", max_length=200), clock=clock) as journal:
        watch_and_cancel(make_core(journal), 1_000)
        assert journal.flush(PATIENCE_S)
    assert journal.statistics().sinks[0].written == 2_000
    assert 200 <= len(read(server, "s")) <= 300


def test_a_server_that_is_away_is_waited_for_within_bounds(
    server: ValkeyServer, clock: MockClock, make_core: MakeCore, caplog: pytest.LogCaptureFixture
) -> None:
    """What there is room for comes once it is back, in order; the rest is counted."""
    journal = Journal(
        RedisStream(server.url, stream="s"), max_buffered=40, retry=RETRY, clock=clock
    )
    core = make_core(journal)
    with journal:
        watch_and_cancel(core, 5)
        assert journal.flush(PATIENCE_S)
        server.kill()
        for _ in range(10):
            watch_and_cancel(core, 10)
            journal.flush(0.5)
            if journal.statistics().sinks[0].dropped:
                break
        failing = journal.statistics().sinks[0]
        assert failing.is_failing
        assert failing.last_error is not None and failing.last_error.startswith("ConnectionError")
        assert (failing.written, failing.dropped > 0, failing.pending > 0) == (10, True, True)
        server.start()
        assert journal.flush(PATIENCE_S)
    [statistics] = journal.statistics().sinks
    assert not statistics.is_failing
    assert statistics.dropped == failing.dropped
    assert statistics.written + statistics.dropped == journal.statistics().rows
    seqs = [int(entry["seq"]) for entry in read(server, "s")]
    assert (seqs, len(seqs)) == (sorted(set(seqs)), statistics.written)
    assert caplog.text.count("retrying at least every") == 1


def test_closing_without_a_server_gives_up(
    server: ValkeyServer, clock: MockClock, make_core: MakeCore
) -> None:
    """After one try more; the rows are counted."""
    server.kill()
    journal = Journal(
        RedisStream(server.url),
        retry=RetryPolicy(first_ms=3_600_000, max_ms=3_600_000),
        clock=clock,
    )
    with journal:
        watch_and_cancel(make_core(journal), 5)
    [statistics] = journal.statistics().sinks
    assert (statistics.written, statistics.dropped, statistics.pending) == (0, 10, 0)


def test_an_entry_that_the_server_refuses_is_an_error_that_is_told(
    server: ValkeyServer, clock: MockClock, make_core: MakeCore
) -> None:
    """As where the name is taken by something that is no stream."""
    with redis.Redis.from_url(server.url) as client:
        client.set("s", "text")
        journal = Journal(RedisStream(server.url, stream="s"), retry=RETRY, clock=clock)
        with journal:
            watch_and_cancel(make_core(journal), 1)
            assert not journal.flush(0.2)
            error = journal.statistics().sinks[0].last_error
            assert error is not None and "WRONGTYPE" in error
            client.delete("s")
            assert journal.flush(PATIENCE_S)
    assert len(read(server, "s")) == 2


def test_a_name_has_no_password() -> None:
    """It is logged, and in the statistics."""
    stream = RedisStream("redis://user:secret@localhost:6379/2", stream="s")
    assert stream.name == "redis://localhost:6379/2 s"


def test_options_that_make_no_sense_are_refused() -> None:
    """With what is allowed."""
    with pytest.raises(ValueError, match="max_length is 0: give 1 or more"):
        RedisStream("redis://localhost", max_length=0)
    for url, shown in (
        ("http://localhost", "http://localhost"),
        ("redis://user:sec/ret@localhost", "redis://***@localhost"),
        ("redis://localhost:port", "redis://***"),
    ):
        with pytest.raises(ValueError, match="give redis://HOST:PORT/NUMBER") as caught:
            RedisStream(url)
        assert str(caught.value).startswith(f"{shown!r} is not a Redis URL")
