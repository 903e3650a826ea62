"""The copy of a log, and several as one: cursors of later times, losses, and what was read."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory.errors import BadCursorError, CursorExpiredError, SignalsUnavailableError
from purgatory.limits import Limits
from purgatory.signals.log_replica import (
    MAX_AHEAD,
    MAX_EPOCHS,
    MAX_UNKNOWN,
    LogReplica,
    Loss,
    ShardedSignals,
)
from purgatory.signals.model import EntryType, Epoch, LogEntry
from purgatory.testing import MockClock
from tests.cases import cases

A, B, C, D = (letter * 12 for letter in "abcd")


def _entry(offset: int, key: str = "k") -> LogEntry:
    return LogEntry(offset, EntryType.FIRED, offset, 0, 0, key, b"1")


def _epochs(**starts: int) -> list[Epoch]:
    """Return epochs by their letters; "a" is the first, unless another is given as such."""
    return [Epoch(name * 12, start) for name, start in ({"a": 0} | starts).items()]


def _unread_replica(index: int = 0, count: int = 1) -> LogReplica:
    limits = Limits(
        max_signals_per_key=10, max_signals=10, max_signal_bytes=1_000, max_value_bytes=100
    )
    return LogReplica(clock=MockClock(), limits=limits, index=index, count=count)


def _replica(index: int = 0, count: int = 1, epoch: str = A, *, applied: int = 0) -> LogReplica:
    """Return a copy that was read: entries on "k" up to `applied`."""
    replica = _unread_replica(index, count)
    replica.begin([Epoch(epoch, 0)], 0)
    replica.is_loaded = True
    _apply(replica, applied)
    return replica


def _apply(replica: LogReplica, until: int, key: str = "k") -> None:
    for offset in range(replica.applied + 1, until + 1):
        replica.apply(_entry(offset, key))


def _lose(replica: LogReplica, **starts: int) -> Loss:
    loss = replica.extend(_epochs(**starts))
    assert loss is not None
    return loss


def _offsets(replica: LogReplica, after: int = 0) -> list[int]:
    return [signal.offset for signal in replica.read("k", after, 9)]


@cases("reads", range(5))
def test_a_cursor_of_an_unknown_epoch_waits_for_a_read_that_began_after_it(reads: int) -> None:
    """One read may be under way, so the second one tells."""
    replica = _replica()
    replica.reads = reads
    for _ in range(2):
        with pytest.raises(SignalsUnavailableError, match="later time"):
            replica.position("k", f"{B}-1")
        replica.reads += 1
    with pytest.raises(CursorExpiredError, match="another has taken its place"):
        replica.position("k", f"{B}-1")


@cases(
    "steps, kept, is_incomplete",
    [
        # What removed entry 6 is at 7: a log that keeps 6 and loses 7 has 6 again.
        ([(5, [7], 7)], 5, False),
        ([(5, [7], 7)], 6, True),
        ([(5, [7], 7)], 7, False),
        # The first that is missing and the latest head, until all up to that head is applied.
        ([(0, [2], 4), (2, [4], 6), 5, (5, [6], 6)], 5, True),
        ([(0, [2], 4), 2, (2, [4], 6)], 2, True),
        # What has removed it is here too, so that it cannot return.
        ([(0, [2], 4), 4, (4, [6], 6)], 4, False),
        # As many entries may be missing before a page as follow its first one.
        ([(0, [1, 2, 3], 9), 3], 5, False),
        ([(0, [2, 3], 9), 3], 5, True),
        # No page of a log that was read whole missed an entry.
        ([1], 0, False),
    ],
)
def test_what_was_missing_returns_if_its_removal_is_lost(
    steps: list[Any], kept: int, *, is_incomplete: bool
) -> None:
    """By the pages that were read, each after an offset and with a head, and what was applied."""
    replica = _replica()
    for step in steps:
        if isinstance(step, int):
            replica.applied = step
        else:
            after, offsets, head = step
            replica.note_page(after, [_entry(offset) for offset in offsets], head)
    assert _lose(replica, b=kept).is_incomplete == is_incomplete


@cases("read", [3, 6])
@cases("next_kept", [0, 1, 2])
def test_what_was_missing_returns_once(read: int, next_kept: int) -> None:
    """The loss after that one is as any other, however little is kept."""
    replica = _replica(applied=read)
    replica.note_page(1, [_entry(3)], 4)
    assert _lose(replica, b=3).is_incomplete
    assert replica.earliest("k") == replica.earliest("other") == replica.head()
    assert not _lose(replica, b=3, c=next_kept).is_incomplete


def test_cursors_of_positions_from_before_losses_name_their_epoch() -> None:
    """Also after a second loss: the wait that began there is told what was lost since."""
    replica = _replica(applied=5)
    positions = [2, replica.head()]
    _lose(replica, b=3)
    positions.append(replica.head())
    _apply(replica, 5)
    positions.append(replica.head())
    # Nothing was lost between the position behind a loss and the next loss.
    assert set(_lose(replica, b=3, c=4).keys) == {"k"}
    positions.append(replica.head())
    assert [replica.cursor(position) for position in positions] == [
        f"{A}-2", f"{A}-5", f"{B}-3", f"{B}-5", f"{C}-4",
    ]  # fmt: skip
    assert [replica.offset_of(position) for position in positions] == [2, 5, 3, 5, 4]


def test_two_losses_of_nothing_that_is_here() -> None:
    """No wait is told of them, and cursors are of the last epoch."""
    replica = _replica(applied=5)
    loss = _lose(replica, b=5, c=5)
    assert not loss.keys and not loss.has_unknown_keys
    assert replica.cursor(replica.head()) == f"{C}-5"


def test_a_wait_that_timed_out_has_read_all_of_the_logs_without_signals_for_it() -> None:
    """The cursor for the next wait; where a signal has come, it is before that one."""
    replicas = [_replica(index, 2) for index in range(2)]
    signals = ShardedSignals(MockClock(), replicas, lambda key: int(key[1:]) % 2)
    replicas[0].apply(_entry(1, "k2"))
    for _ in range(2):
        assert signals.cursor_after(("k0", "k1"), (0, 1), None, 0) == f"{A}-1.{A}-0"
        replicas[1].apply(_entry(1, "k1"))


@cases(
    "epochs, may_be_old",
    [
        ([Epoch(B, 0)], True),
        ([Epoch(A, 0)], True),
        ([Epoch(C, 0)], False),
        ([Epoch(C, 0), Epoch(D, 1)], True),
    ],
)
def test_a_log_may_be_an_old_one_unless_it_has_one_unknown_epoch(
    epochs: list[Epoch], *, may_be_old: bool
) -> None:
    """That of a log that was emptied; it is old if it was here, or has had a loss."""
    replica = _replica()
    replica.begin([Epoch(B, 0)], 0)
    assert replica.may_be_old(epochs) == may_be_old


@cases("kept, is_unknown", [(4, True), (5, False), (6, False), (7, False)])
def test_a_loss_has_the_keys_of_lost_entries(kept: int, *, is_unknown: bool) -> None:
    """Not that of the last entry that is kept; before the first that was read, any key."""
    replica = _replica()
    replica.begin(_epochs(), 5)
    for offset in (6, 7, 8):
        replica.apply(_entry(offset, f"k{offset}"))
    loss = _lose(replica, b=kept)
    assert loss.keys == {f"k{offset}": f"{A}-{offset}" for offset in (6, 7, 8) if offset > kept}
    assert loss.has_unknown_keys == is_unknown


@cases("read, head", [(5, 5), (6, 7)])
def test_the_head_moves_past_waits_that_began_ahead_of_a_loss(read: int, head: int) -> None:
    """They are after entries that are lost; if there is none, positions stay as they are."""
    replica = _replica()
    replica.apply(_entry(5))
    assert replica.position("k", f"{A}-{read}") == read
    _lose(replica, b=5)
    assert (replica.head(), replica.cursor(head)) == (head, f"{B}-5")


def test_a_cursor_at_the_place_of_a_loss_is_before_or_after_it() -> None:
    """By its epoch: the entries that were lost came after the one, and before the other."""
    replica = _replica(applied=5)
    _lose(replica, b=3)
    assert replica.position("other", f"{A}-3") == 3
    assert replica.position("other", f"{B}-3") == replica.head() == 6
    with pytest.raises(CursorExpiredError):
        replica.position("other", f"{A}-4")
    assert [replica.kept_before(A, offset) for offset in (3, 4)] == [None, 3]


@cases(
    "later, common",
    [
        ({}, 2),
        ({"c": 7}, 4),
        ({"b": 4}, 2),
        ({"b": 4, "c": 7}, 7),
        ({"b": 4, "c": 7, "d": 6}, 6),
        ({"c": 3, "d": 6}, 3),
        ({"c": 1}, 2),
    ],
)
def test_a_log_has_in_common_what_comes_before_the_epochs_of_one_side(
    later: dict[str, int], common: int
) -> None:
    """Or what is here already, up to entry 2."""
    replica = _replica()
    replica.begin(_epochs(b=4), 2)
    assert replica.common_until(_epochs(**later)) == common
    assert replica.common_until([Epoch("e" * 12, 0)]) == 2


@cases("cursor", ["0", f"{A}-1"])
def test_no_cursor_is_judged_before_the_log_was_read(cursor: str) -> None:
    """Whether what it names was lost is unknown until then."""
    with pytest.raises(SignalsUnavailableError, match="not read from their server yet"):
        _unread_replica().position("k", cursor)


def test_losing_through_an_entry_that_is_here_loses_nothing() -> None:
    """Only what comes after the last entry of the key is unknown."""
    replica = _replica()
    replica.apply(_entry(3))
    assert not replica.lose_through("k", 3)
    assert replica.position("k", f"{A}-2") == 2
    assert replica.lose_through("k", 4)
    with pytest.raises(CursorExpiredError):
        replica.position("k", f"{A}-3")


@cases("key, is_lost", [("known", False), ("k", True), ("new", True)])
def test_losing_through_an_entry_for_all_keys_but_those_that_are_known(
    key: str, *, is_lost: bool
) -> None:
    """Of keys that are here and of others: a cursor from before it may have missed signals."""
    replica = _replica(applied=1)
    replica.apply(_entry(2, "known"))
    replica.lose_others({"known"}, 9)
    assert replica.position(key, f"{A}-9") == 9
    if is_lost:
        with pytest.raises(CursorExpiredError):
            replica.position(key, f"{A}-8")
    else:
        assert replica.position(key, f"{A}-2") == 2


@cases("is_one_key", [True, False])
def test_a_loss_ahead_of_what_is_here_expires_no_cursor_of_a_later_epoch(
    *, is_one_key: bool
) -> None:
    """The log has lost what was ahead, and its new entries are other ones."""
    replica = _replica()
    replica.begin(_epochs(), 3)
    if is_one_key:
        replica.lose_through("k", 9)
    else:
        replica.lose_others(set(), 9)
    _lose(replica, b=3)
    begun = replica.position("k", f"{B}-3")
    assert not replica.has_after("k", begun, 1)
    replica.apply(_entry(4))
    assert _offsets(replica, begun) == [replica.head()]


def test_what_was_read_is_not_read_again() -> None:
    """A wait from the last signal of its key waits for the next one."""
    replica = _replica(applied=1)
    assert replica.earliest("k") < replica.head()
    assert replica.has_after("k", 0, 1) and not replica.has_after("k", 1, 1)
    replica.apply(_entry(2, "other"))
    assert not replica.has_after("k", 1, 1) and not replica.has_after("k", 2, 1)
    # An entry that is here does not have to be waited for, the next one does.
    assert [replica.has_applied(position) for position in (2, 3)] == [True, False]


def test_the_next_wait_begins_behind_what_was_read_or_where_this_one_began() -> None:
    """A signal was read to its own place; a wait that has timed out may have begun ahead of it."""
    replica = _replica()
    for key, head, offset in (("a", 5, 5), (None, 5, 7), (None, 9, 9)):
        assert replica.cursor_after(("a", "b"), (2, 7), key, head) == f"{A}-{offset}"


@cases("losses", [MAX_EPOCHS, MAX_EPOCHS + 1])
def test_a_cursor_from_before_too_many_losses_is_expired(losses: int) -> None:
    """What its offset was in this process is not known any more, though its signal is here."""
    replica = _replica(applied=2)
    epochs = _epochs()
    for number in range(losses):
        replica.apply(_entry(3, "lost"))
        epochs = [*epochs, Epoch(f"{number:012x}", 2)][-MAX_EPOCHS:]
        assert replica.extend(epochs) is not None
    assert _offsets(replica) == [1, 2]
    cursor = f"{replica.epoch}-1"
    if losses <= MAX_EPOCHS:
        assert replica.position("k", cursor) == 1
    else:
        with pytest.raises(CursorExpiredError):
            replica.position("k", cursor)


def test_a_cursor_of_another_log_is_refused() -> None:
    """One of a time that no log knows is for the log of the key to judge. The error stays short."""
    replicas = [_replica(0, 2), _replica(1, 2, B)]
    signals = ShardedSignals(MockClock(), replicas, lambda key: int(key[1:]) % 2)
    replicas[1].apply(_entry(1, "k1"))
    both = f"{A}-0.{B}-1"
    assert (signals.position("k0", both), signals.position("k1", both)) == (0, 3)
    with pytest.raises(BadCursorError, match="is of other keys than 'k0'"):
        signals.position("k0", f"{B}-1")
    with pytest.raises(BadCursorError, match=r"^cursor 'b{12}-0{51}' is of other keys"):
        signals.position("k0", f"{B}-{1:099}")
    for cursor in (f"{C}-1", f"{B}-1.{C}-1"):
        with pytest.raises(SignalsUnavailableError, match="later time"):
            signals.position("k0", cursor)
    # A part of a time that no log knows hides no part of another, which was read further.
    assert signals.position("k1", f"{C}-1.{B}-1") == replicas[1].head()


def test_a_cursor_may_be_so_far_ahead() -> None:
    """Of what was applied: another process may be faster, but not by that much."""
    replica = _replica()
    replica.apply(_entry(1_000))
    last = 1_000 + MAX_AHEAD
    assert replica.position("k", f"{A}-{last}") == last
    with pytest.raises(BadCursorError, match="ahead of every signal"):
        replica.position("k", f"{A}-{last + 1}")


@cases(
    "count, error", [(MAX_UNKNOWN, CursorExpiredError), (MAX_UNKNOWN + 1, SignalsUnavailableError)]
)
def test_so_many_unknown_epochs_are_remembered(count: int, error: type[Exception]) -> None:
    """One that was forgotten is asked for anew."""
    replica = _replica()
    for number in range(count):
        with pytest.raises(SignalsUnavailableError):
            replica.position("k", f"{number:012x}-1")
    replica.reads = 2
    with pytest.raises(error):
        replica.position("k", f"{0:012x}-1")


@cases(
    "count, error",
    [(2 * MAX_EPOCHS, CursorExpiredError), (2 * MAX_EPOCHS + 1, SignalsUnavailableError)],
)
def test_so_many_former_logs_are_remembered(count: int, error: type[Exception]) -> None:
    """Their cursors are expired at once; that of one that was forgotten may be of a later time."""
    replica = _replica()
    names = [f"{number:012x}" for number in range(count)]
    for name in names:
        replica.begin([Epoch(name, 0)], 0)
    with pytest.raises(error):
        replica.position("k", f"{A}-1")
    for name in names[:-1]:
        with pytest.raises(CursorExpiredError):
            replica.position("k", f"{name}-1")
