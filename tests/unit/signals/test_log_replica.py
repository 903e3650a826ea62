"""The copy of a log, and several as one: cursors of later times, losses, and what was read."""

from __future__ import annotations

import pytest

from purgatory.errors import CursorExpiredError, SignalsUnavailableError
from purgatory.signals.log_entry import EntryType, Epoch, LogEntry
from purgatory.signals.log_replica import LogReplica
from purgatory.signals.sharded_signals import ShardedSignals
from purgatory.testing import MockClock


@pytest.mark.parametrize("reads", range(5))
def test_a_cursor_of_an_unknown_epoch_waits_for_a_read_that_began_after_it(reads: int) -> None:
    """One read may be under way, so the second one tells."""
    replica = _replica()
    replica.reads = reads
    for _ in range(2):
        with pytest.raises(SignalsUnavailableError, match="later time"):
            replica.position("k", "bbbbbbbbbbbb-1")
        replica.reads += 1
    with pytest.raises(CursorExpiredError, match="another has taken its place"):
        replica.position("k", "bbbbbbbbbbbb-1")


@pytest.mark.parametrize(("kept", "is_incomplete"), [(5, False), (6, True), (7, False)])
def test_a_loss_returns_what_was_missing_only_between_its_place_and_the_head(
    kept: int, is_incomplete: bool
) -> None:
    """What removed entry 6 is at 7: a log that keeps 6 and loses 7 has 6 again."""
    replica = _replica()
    replica.note_page(5, [_entry(7)], 7)
    epochs = [Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", kept)]
    loss = replica.extend(epochs)
    assert loss is not None and loss.is_incomplete == is_incomplete


def test_pages_note_the_first_that_is_missing_and_the_latest_head() -> None:
    """Until all up to that head is applied."""
    replica = _replica()
    replica.note_page(0, [_entry(2)], 4)
    replica.note_page(2, [_entry(4)], 6)
    replica.applied = 5
    replica.note_page(5, [_entry(6)], 6)
    loss = replica.extend([Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 5)])
    assert loss is not None and loss.is_incomplete


def test_cursors_of_positions_from_before_losses_name_their_epoch() -> None:
    """Also after a second loss: the wait that began there is told what was lost since."""
    replica = _replica()
    epochs = [Epoch("aaaaaaaaaaaa", 0)]
    positions = {}
    for name, kept in (("b" * 12, 3), ("c" * 12, 4)):
        for offset in range(replica.applied + 1, 6):
            replica.apply(_entry(offset))
        positions[epochs[-1].name] = replica.head()
        epochs.append(Epoch(name, kept))
        assert replica.extend(epochs) is not None
    positions[replica.epoch] = replica.head()
    assert [replica.cursor(position) for position in positions.values()] == [
        "aaaaaaaaaaaa-5",
        "bbbbbbbbbbbb-5",
        "cccccccccccc-4",
    ]


def test_a_wait_that_timed_out_has_read_all_of_the_logs_without_signals_for_it() -> None:
    """The cursor for the next wait; where a signal has come, it is before that one."""
    replicas = [_replica(index, 2) for index in range(2)]
    signals = ShardedSignals(MockClock(), replicas, lambda key: int(key[1:]) % 2)
    keys, begun = ("k0", "k1"), (0, 1)
    replicas[0].apply(_entry(1, "k2"))
    assert signals.cursor_after(keys, begun, None, 0) == "aaaaaaaaaaaa-1.aaaaaaaaaaaa-0"
    replicas[1].apply(_entry(1, "k1"))
    assert signals.cursor_after(keys, begun, None, 0) == "aaaaaaaaaaaa-1.aaaaaaaaaaaa-0"


def _entry(offset: int, key: str = "k") -> LogEntry:
    return LogEntry(offset, EntryType.FIRED, offset, 0, 0, key, b"1")


def _replica(index: int = 0, count: int = 1) -> LogReplica:
    replica = LogReplica(
        clock=MockClock(),
        index=index,
        count=count,
        max_signals_per_key=10,
        max_signals=10,
        max_bytes=1_000,
        max_value_bytes=100,
    )
    replica.begin([Epoch("aaaaaaaaaaaa", 0)], 0)
    replica.is_loaded = True
    return replica
