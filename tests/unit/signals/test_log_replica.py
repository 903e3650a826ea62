"""The copy of a log, and several as one: cursors of later times, losses, and what was read."""

from __future__ import annotations

import pytest

from purgatory.errors import BadCursorError, CursorExpiredError, SignalsUnavailableError
from purgatory.signals.log_replica import MAX_AHEAD, MAX_EPOCHS, MAX_UNKNOWN, LogReplica, Loss
from purgatory.signals.sharded_signals import ShardedSignals
from purgatory.signals.shared_signals import EntryType, Epoch, LogEntry
from purgatory.testing import MockClock
from tests.cases import cases


@cases("reads", range(5))
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


@cases("kept, is_incomplete", [(5, False), (6, True), (7, False)])
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


@cases("offsets, is_incomplete", [((1, 2, 3), False), ((2, 3), True)])
def test_a_page_notes_what_is_missing_and_nothing_else(
    offsets: tuple[int, ...], *, is_incomplete: bool
) -> None:
    """Also if as many entries are missing before it as follow the first one."""
    replica = _replica()
    replica.note_page(0, [_entry(offset) for offset in offsets], 9)
    for offset in offsets:
        replica.apply(_entry(offset))
    loss = replica.extend([Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 5)])
    assert loss is not None and loss.is_incomplete == is_incomplete


def test_what_is_missing_first_is_noted_until_all_up_to_the_head_is_applied() -> None:
    """What has removed it is between: a log that loses that has entry 1 again."""
    replica = _replica()
    replica.note_page(0, [_entry(2)], 4)
    replica.applied = 2
    replica.note_page(2, [_entry(4)], 6)
    loss = replica.extend([Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 2)])
    assert loss is not None and loss.is_incomplete


def test_a_log_that_was_read_whole_and_loses_all_of_it_lacks_nothing() -> None:
    """No page of it missed an entry, so that none can return."""
    replica = _replica()
    replica.apply(_entry(1))
    loss = replica.extend([Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 0)])
    assert loss is not None and not loss.is_incomplete


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


def test_a_key_keeps_its_signals_unless_one_is_missing_before_the_next() -> None:
    """An entry names the one of its key before it: if that is not here, nothing older is valid."""
    replica = _replica()
    for offset, previous in ((1, 0), (2, 1), (3, 2)):
        replica.apply(_entry(offset)._replace(previous=previous))
    assert [signal.offset for signal in replica.read("k", 0, 9)] == [1, 2, 3]
    replica.apply(_entry(6)._replace(previous=5))
    assert replica.earliest("k") == 5
    assert [signal.offset for signal in replica.read("k", 0, 9)] == [6]


def test_a_signal_is_as_the_process_has_fired_it() -> None:
    """With its number, its time and its value."""
    replica = _replica()
    signal = replica.apply(LogEntry(3, EntryType.FIRED, 7, 1_234, 0, "k", b'{"n":1}'))
    assert signal is not None
    assert (signal.key, signal.seq, signal.at_ms, signal.value) == ("k", 7, 1_234, {"n": 1})


def test_a_position_has_the_offset_of_its_entry_in_the_log() -> None:
    """Also behind a loss, where the log uses offsets again."""
    replica = _replica()
    for offset in range(1, 6):
        replica.apply(_entry(offset))
    before = replica.head()
    replica.extend([Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 3)])
    replica.apply(_entry(4))
    assert before < replica.head()
    assert [replica.offset_of(position) for position in (before, replica.head())] == [5, 4]


@cases(
    "epochs, may_be_old",
    [
        ([Epoch("bbbbbbbbbbbb", 0)], True),
        ([Epoch("aaaaaaaaaaaa", 0)], True),
        ([Epoch("cccccccccccc", 0)], False),
        ([Epoch("cccccccccccc", 0), Epoch("dddddddddddd", 1)], True),
    ],
)
def test_a_log_may_be_an_old_one_unless_it_has_one_unknown_epoch(
    epochs: list[Epoch], *, may_be_old: bool
) -> None:
    """That of a log that was emptied; it is old if it was here, or has had a loss."""
    replica = _replica()
    replica.begin([Epoch("bbbbbbbbbbbb", 0)], 0)
    assert replica.may_be_old(epochs) == may_be_old


@cases("kept, is_unknown", [(4, True), (5, False), (6, False), (7, False)])
def test_a_loss_has_the_keys_of_lost_entries(kept: int, *, is_unknown: bool) -> None:
    """Not that of the last entry that is kept; before the first that was read, any key."""
    replica = _replica()
    replica.begin([Epoch("aaaaaaaaaaaa", 0)], 5)
    for offset in (6, 7, 8):
        replica.apply(_entry(offset, f"k{offset}"))
    loss = replica.extend([Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", kept)])
    assert loss is not None
    assert loss.keys == {
        f"k{offset}": f"aaaaaaaaaaaa-{offset}" for offset in (6, 7, 8) if offset > kept
    }
    assert loss.has_unknown_keys == is_unknown


@cases("read, head", [(5, 5), (6, 7)])
def test_the_head_moves_past_waits_that_began_ahead_of_a_loss(read: int, head: int) -> None:
    """They are after entries that are lost; if there is none, positions stay as they are."""
    replica = _replica()
    replica.apply(_entry(5))
    assert replica.position("k", f"aaaaaaaaaaaa-{read}") == read
    replica.extend([Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 5)])
    assert (replica.head(), replica.cursor(head)) == (head, "bbbbbbbbbbbb-5")


def test_the_head_stays_behind_waits_that_are_not_ahead_of_a_loss() -> None:
    """Also if there was a loss before, since which positions and offsets differ."""
    replica = _replica()
    epochs = [Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 3)]
    for offset in range(1, 6):
        replica.apply(_entry(offset))
    replica.extend(epochs)
    for offset in (4, 5):
        replica.apply(_entry(offset))
    head = replica.head()
    assert replica.position("k", "bbbbbbbbbbbb-5") == head
    replica.extend([*epochs, Epoch("cccccccccccc", 5)])
    assert replica.head() == head


def test_what_was_missing_is_forgotten_once_all_up_to_the_head_is_applied() -> None:
    """What has removed it is here too, so that it cannot return."""
    replica = _replica()
    replica.note_page(0, [_entry(2)], 4)
    replica.applied = 4
    replica.note_page(4, [_entry(6)], 6)
    loss = replica.extend([Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 4)])
    assert loss is not None and not loss.is_incomplete


def test_a_cursor_at_the_place_of_a_loss_is_before_or_after_it() -> None:
    """By its epoch: the entries that were lost came after the one, and before the other."""
    replica = _replica()
    for offset in range(1, 6):
        replica.apply(_entry(offset))
    replica.extend([Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 3)])
    assert replica.position("other", "aaaaaaaaaaaa-3") == 3
    assert replica.position("other", "bbbbbbbbbbbb-3") == replica.head() == 6
    with pytest.raises(CursorExpiredError):
        replica.position("other", "aaaaaaaaaaaa-4")
    assert [replica.kept_before("aaaaaaaaaaaa", offset) for offset in (3, 4)] == [None, 3]


def test_a_cursor_of_an_epoch_that_never_arrived_here_is_before_the_loss() -> None:
    """It lost entries at the same place, of its own."""
    replica = _replica()
    for offset in range(1, 7):
        replica.apply(_entry(offset))
    replica.extend([Epoch(name * 12, start) for name, start in (("a", 0), ("b", 5), ("c", 3))])
    places = [replica.position("other", f"{name * 12}-3") for name in "abc"]
    assert places == [3, 3, replica.head()]


@cases(
    "later, common",
    [
        ([], 2),
        ([Epoch("cccccccccccc", 7)], 4),
        ([Epoch("bbbbbbbbbbbb", 4)], 2),
        ([Epoch("bbbbbbbbbbbb", 4), Epoch("cccccccccccc", 7)], 7),
        ([Epoch("bbbbbbbbbbbb", 4), Epoch("cccccccccccc", 7), Epoch("dddddddddddd", 6)], 6),
        ([Epoch("cccccccccccc", 3), Epoch("dddddddddddd", 6)], 3),
        ([Epoch("cccccccccccc", 1)], 2),
    ],
)
def test_a_log_has_in_common_what_comes_before_the_epochs_of_one_side(
    later: list[Epoch], common: int
) -> None:
    """Or what is here already, up to entry 2."""
    first = Epoch("aaaaaaaaaaaa", 0)
    replica = _replica()
    replica.begin([first, Epoch("bbbbbbbbbbbb", 4)], 2)
    assert replica.common_until([first, *later]) == common
    assert replica.common_until([Epoch("eeeeeeeeeeee", 0)]) == 2


def test_the_position_behind_a_loss_keeps_its_epoch_after_the_next_loss() -> None:
    """Nothing was lost between the two."""
    replica = _replica()
    epochs = [Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 3)]
    for offset in range(1, 6):
        replica.apply(_entry(offset))
    replica.extend(epochs)
    behind = replica.head()
    replica.apply(_entry(4))
    replica.apply(_entry(5))
    replica.extend([*epochs, Epoch("cccccccccccc", 4)])
    assert [replica.cursor(behind), replica.cursor(replica.head())] == [
        "bbbbbbbbbbbb-3",
        "cccccccccccc-4",
    ]


def test_a_later_epoch_without_a_loss_names_cursors_after_a_loss_too() -> None:
    """Those of the positions that both losses have left."""
    replica = _replica()
    for offset in range(1, 6):
        replica.apply(_entry(offset))
    epochs = [Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 3)]
    replica.extend(epochs)
    replica.apply(_entry(4))
    loss = replica.extend([*epochs, Epoch("cccccccccccc", 4)])
    assert loss is not None and not loss.keys
    assert replica.cursor(replica.head()) == "cccccccccccc-4"
    assert replica.cursor(2) == "aaaaaaaaaaaa-2"


def test_a_log_that_lacks_an_epoch_of_ours_and_has_no_later_one_is_another() -> None:
    """The copy has to begin anew; with the same epochs, nothing was lost."""
    replica = _replica()
    epochs = [Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 3)]
    replica.begin(epochs, 3)
    assert replica.extend(epochs) == Loss({}, has_unknown_keys=False, is_incomplete=False)
    assert replica.extend(epochs[:1]) is None


def test_an_epoch_that_the_log_lacks_is_lost_from_its_start() -> None:
    """Its entries are not those that the log has at the same offsets."""
    replica = _replica()
    first = Epoch("aaaaaaaaaaaa", 0)
    replica.begin([first, Epoch("bbbbbbbbbbbb", 3)], 3)
    for offset in (4, 5):
        replica.apply(_entry(offset))
    loss = replica.extend([first, Epoch("cccccccccccc", 5)])
    assert loss is not None and loss.keys == {"k": "bbbbbbbbbbbb-5"}
    assert (replica.read("k", 0, 9), replica.cursor(replica.head())) == ([], "cccccccccccc-3")


@cases("cursor", ["0", "aaaaaaaaaaaa-1"])
def test_no_cursor_is_judged_before_the_log_was_read(cursor: str) -> None:
    """Whether what it names was lost is unknown until then."""
    replica = _unread_replica()
    with pytest.raises(SignalsUnavailableError, match="not read from their server yet"):
        replica.position("k", cursor)


def test_losing_through_an_entry_that_is_here_loses_nothing() -> None:
    """Only what comes after the last entry of the key is unknown."""
    replica = _replica()
    replica.apply(_entry(3))
    assert not replica.lose_through("k", 3)
    assert replica.position("k", "aaaaaaaaaaaa-2") == 2
    assert replica.lose_through("k", 4)
    with pytest.raises(CursorExpiredError):
        replica.position("k", "aaaaaaaaaaaa-3")


@cases("key, is_lost", [("known", False), ("k", True), ("new", True)])
def test_losing_through_an_entry_for_all_keys_but_those_that_are_known(
    key: str, *, is_lost: bool
) -> None:
    """Of keys that are here and of others: a cursor from before it may have missed signals."""
    replica = _replica()
    replica.apply(_entry(1))
    replica.apply(_entry(2, "known"))
    replica.lose_others({"known"}, 9)
    assert replica.position(key, "aaaaaaaaaaaa-9") == 9
    if is_lost:
        with pytest.raises(CursorExpiredError):
            replica.position(key, "aaaaaaaaaaaa-8")
    else:
        assert replica.position(key, "aaaaaaaaaaaa-2") == 2


@cases("is_one_key", [True, False])
def test_a_loss_ahead_of_what_is_here_expires_no_cursor_of_a_later_epoch(
    *, is_one_key: bool
) -> None:
    """The log has lost what was ahead, and its new entries are other ones."""
    replica = _replica()
    replica.begin([Epoch("aaaaaaaaaaaa", 0)], 3)
    if is_one_key:
        replica.lose_through("k", 9)
    else:
        replica.lose_others(set(), 9)
    replica.extend([Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 3)])
    begun = replica.position("k", "bbbbbbbbbbbb-3")
    assert not replica.has_after("k", begun, 1)
    replica.apply(_entry(4))
    assert [signal.offset for signal in replica.read("k", begun, 9)] == [replica.head()]


def test_what_is_applied_ends_at_the_head() -> None:
    """An entry that is here does not have to be waited for, the next one does."""
    replica = _replica()
    replica.apply(_entry(3))
    assert [replica.has_applied(position) for position in (3, 4)] == [True, False]


@cases("key", ["lost", "never fired"])
def test_a_loss_is_noticed_before_it_and_not_behind_it(key: str) -> None:
    """A wait from before it ends, and its error says so; one from behind it goes on."""
    replica = _replica()
    replica.begin([Epoch("aaaaaaaaaaaa", 0)], 3)
    replica.apply(_entry(4))
    if key == "lost":
        replica.lose(key)
    earliest = replica.earliest(key)
    assert replica.has_after(key, earliest - 1, 1)
    assert not replica.has_after(key, earliest, 1)
    assert isinstance(replica.loss((key,), (earliest - 1,)), CursorExpiredError)
    assert replica.loss((key,), (earliest,)) is None


def test_what_was_read_is_not_read_again() -> None:
    """A wait from the last signal of its key waits for the next one."""
    replica = _replica()
    replica.apply(_entry(1))
    assert replica.earliest("k") < replica.head()
    assert replica.has_after("k", 0, 1) and not replica.has_after("k", 1, 1)
    replica.apply(_entry(2, "other"))
    assert not replica.has_after("k", 1, 1) and not replica.has_after("k", 2, 1)


def test_the_next_wait_begins_behind_what_was_read_or_where_this_one_began() -> None:
    """A signal was read to its own place; a wait that has timed out may have begun ahead of it."""
    replica = _replica()
    keys, begun = ("a", "b"), (2, 7)
    assert replica.cursor_after(keys, begun, "a", 5) == "aaaaaaaaaaaa-5"
    assert replica.cursor_after(keys, begun, None, 5) == "aaaaaaaaaaaa-7"
    assert replica.cursor_after(keys, begun, None, 9) == "aaaaaaaaaaaa-9"


@cases("is_incomplete", [False, True])
def test_a_later_epoch_that_begins_at_the_head_loses_only_what_was_missing(
    *, is_incomplete: bool
) -> None:
    """Cursors stay valid unless entries that were missing are in the log again."""
    replica = _replica()
    for offset in (1, 2, 3):
        replica.apply(_entry(offset))
    if is_incomplete:
        replica.note_page(1, [_entry(3)], 4)
    loss = replica.extend([Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 3)])
    assert loss is not None and loss.is_incomplete == is_incomplete
    assert (replica.earliest("k") > 0) == is_incomplete
    assert len(replica.read("k", 0, 9)) == (0 if is_incomplete else 3)


@cases("applied, kept", [(2, 2), (3, 3), (4, 3), (9, 3)])
def test_cursors_name_the_last_of_several_later_epochs(applied: int, kept: int) -> None:
    """Whether or not something is lost."""
    replica = _replica()
    for offset in range(1, applied + 1):
        replica.apply(_entry(offset))
    replica.extend([Epoch(name * 12, start) for name, start in (("a", 0), ("b", 3), ("c", 5))])
    assert replica.cursor(replica.head()) == f"cccccccccccc-{kept}"


def test_what_was_missing_in_a_former_log_does_not_return_in_the_next_one() -> None:
    """Cursors of the new log stay valid where it loses what a gap of the former one had."""
    replica = _replica()
    replica.note_page(5, [_entry(7)], 7)
    replica.begin([Epoch("bbbbbbbbbbbb", 0)], 0)
    replica.apply(_entry(1))
    loss = replica.extend([Epoch("bbbbbbbbbbbb", 0), Epoch("cccccccccccc", 6)])
    assert loss is not None and not loss.is_incomplete
    assert replica.position("k", "bbbbbbbbbbbb-1") == replica.head()


@cases("read", [3, 6])
@cases("next_kept", [0, 1, 2])
def test_what_was_missing_returns_once(read: int, next_kept: int) -> None:
    """The loss after that one is as any other, however little is kept."""
    replica = _replica()
    for offset in range(1, read + 1):
        replica.apply(_entry(offset))
    replica.note_page(1, [_entry(3)], 4)
    epochs = [Epoch("aaaaaaaaaaaa", 0), Epoch("bbbbbbbbbbbb", 3)]
    first = replica.extend(epochs)
    assert replica.earliest("k") == replica.earliest("other") == replica.head()
    second = replica.extend([*epochs, Epoch("cccccccccccc", next_kept)])
    assert first is not None and first.is_incomplete
    assert second is not None and not second.is_incomplete


@cases("losses", [MAX_EPOCHS, MAX_EPOCHS + 1])
def test_a_cursor_from_before_too_many_losses_is_expired(losses: int) -> None:
    """What its offset was in this process is not known any more, though its signal is here."""
    replica = _replica()
    replica.apply(_entry(1))
    replica.apply(_entry(2))
    epochs = [Epoch("aaaaaaaaaaaa", 0)]
    for number in range(losses):
        replica.apply(_entry(3, "lost"))
        epochs = [*epochs, Epoch(f"{number:012x}", 2)][-MAX_EPOCHS:]
        assert replica.extend(epochs) is not None
    assert [signal.offset for signal in replica.read("k", 0, 9)] == [1, 2]
    cursor = f"{replica.epoch}-1"
    if losses <= MAX_EPOCHS:
        assert replica.position("k", cursor) == 1
    else:
        with pytest.raises(CursorExpiredError):
            replica.position("k", cursor)


def test_a_new_log_is_known_by_the_last_of_its_epochs() -> None:
    """Cursors of those before it are of this log, too, as far as it has kept what they name."""
    replica = _replica()
    replica.begin([Epoch("bbbbbbbbbbbb", 0), Epoch("cccccccccccc", 3)], 4)
    assert (replica.epoch, replica.cursor(replica.head())) == ("cccccccccccc", "cccccccccccc-4")


def test_a_cursor_of_another_log_is_refused() -> None:
    """One of a time that no log knows is for the log of the key to judge. The error stays short."""
    replicas = [_replica(0, 2), _replica(1, 2, "bbbbbbbbbbbb")]
    signals = ShardedSignals(MockClock(), replicas, lambda key: int(key[1:]) % 2)
    replicas[1].apply(_entry(1, "k1"))
    both = "aaaaaaaaaaaa-0.bbbbbbbbbbbb-1"
    assert (signals.position("k0", both), signals.position("k1", both)) == (0, 3)
    with pytest.raises(BadCursorError, match="is of other keys than 'k0'"):
        signals.position("k0", "bbbbbbbbbbbb-1")
    with pytest.raises(BadCursorError, match=r"^cursor 'b{12}-0{51}' is of other keys"):
        signals.position("k0", f"bbbbbbbbbbbb-{1:099}")
    for cursor in ("cccccccccccc-1", "bbbbbbbbbbbb-1.cccccccccccc-1"):
        with pytest.raises(SignalsUnavailableError, match="later time"):
            signals.position("k0", cursor)


def test_a_part_of_a_time_that_no_log_knows_hides_no_other_part() -> None:
    """It is of the other log, which another process has read further."""
    replicas = [_replica(0, 2), _replica(1, 2, "bbbbbbbbbbbb")]
    signals = ShardedSignals(MockClock(), replicas, lambda key: int(key[1:]) % 2)
    replicas[1].apply(_entry(1, "k1"))
    assert signals.position("k1", "cccccccccccc-1.bbbbbbbbbbbb-1") == replicas[1].head()


def test_a_cursor_may_be_so_far_ahead() -> None:
    """Of what was applied: another process may be faster, but not by that much."""
    replica = _replica()
    replica.apply(_entry(1_000))
    last = 1_000 + MAX_AHEAD
    assert replica.position("k", f"aaaaaaaaaaaa-{last}") == last
    with pytest.raises(BadCursorError, match="ahead of every signal"):
        replica.position("k", f"aaaaaaaaaaaa-{last + 1}")


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
    names = ["a" * 12, *(f"{number:012x}" for number in range(count))]
    for name in names[1:]:
        replica.begin([Epoch(name, 0)], 0)
    with pytest.raises(error):
        replica.position("k", f"{names[0]}-1")
    for name in names[1:-1]:
        with pytest.raises(CursorExpiredError):
            replica.position("k", f"{name}-1")


def _entry(offset: int, key: str = "k") -> LogEntry:
    return LogEntry(offset, EntryType.FIRED, offset, 0, 0, key, b"1")


def _replica(index: int = 0, count: int = 1, epoch: str = "aaaaaaaaaaaa") -> LogReplica:
    replica = _unread_replica(index, count)
    replica.begin([Epoch(epoch, 0)], 0)
    replica.is_loaded = True
    return replica


def _unread_replica(index: int = 0, count: int = 1) -> LogReplica:
    return LogReplica(
        clock=MockClock(),
        index=index,
        count=count,
        max_signals_per_key=10,
        max_signals=10,
        max_bytes=1_000,
        max_value_bytes=100,
    )
