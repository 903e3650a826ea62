"""Messages in the channel of a log, whoever has sent them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from purgatory.errors import CursorExpiredError
from purgatory.signals.log_entry import EntryType, LogEntry
from purgatory.signals.log_replica import LogReplica
from purgatory.signals.redis.follower import Follower
from purgatory.signals.redis.own_entries import MAX_OWN
from purgatory.signals.redis.shard_log import AppendReply, AppendRequest, LogState, parse_message
from purgatory.testing import MockClock
from tests.properties.log_model import LogModel


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"x",
        b"a 1 ",
        b"a 1 0:",
        b"a 1 -3:",
        b"a 1 9:f",
        b"a 1 5:hello",
        b"a 1 10:f1 0 0 9 k",
        b"a 1 11:f1 0 0 1 \xff1",
        b"a 1 11:q1 0 0 1 k1",
    ],
)
async def test_a_message_that_is_none_has_the_log_read(message: bytes) -> None:
    """Whatever it is: nothing of it is applied, and following continues."""
    log = LogModel(per_key=10, in_all=10, page=10)
    follower = _follower(log)
    await follower.catch_up()
    log.add([(EntryType.FIRED, "key", b"")])
    await follower._handle({"type": "message", "data": message})
    await follower.catch_up()
    assert follower.replica.applied == 1


def test_texts_that_do_not_fit_are_refused() -> None:
    """A negative size would be read for ever."""
    for text in (b"a 1 -3:", b"a 1 4:abc"):
        with pytest.raises(ValueError, match="does not fit"):
            parse_message(text)


async def test_waits_for_a_position_that_never_comes_leave_nothing() -> None:
    """A client may make such a cursor up."""
    follower = _follower(LogModel(per_key=10, in_all=10, page=10))
    await follower.catch_up()
    for _ in range(100):
        assert not await follower.own.reach(1_000, 0)
    assert not follower.own._behind


async def test_own_entries_that_do_not_arrive_are_bounded() -> None:
    """As where the channel may not be subscribed to."""
    follower = _follower(LogModel(per_key=10, in_all=10, page=10))
    await follower.catch_up()
    epoch = follower.replica.epoch
    for offset in range(2, MAX_OWN + 100):
        entry = LogEntry(offset, EntryType.FIRED, 1, 0, 0, "key", b"1")
        (future,) = follower.apply_own(epoch, [entry])
        if offset == 2:
            first = future
    assert len(follower.own._own) <= MAX_OWN
    assert first.result() == 0


async def test_a_message_that_overtakes_the_reply_keeps_the_count_of_what_was_ended() -> None:
    """The fire that completed the operations is told so."""

    class EarlyLog(LogModel):
        async def append(self, request: AppendRequest) -> AppendReply:
            reply = await super().append(request)
            (entry,) = self.messages.pop()[1]
            text = b"f%d 0 0 3 key" % entry.seq
            message = b"%b %d %d:%b" % (reply.epoch.encode(), entry.offset, len(text), text)
            assert follower.apply_message(message)
            return reply

    follower = _follower(EarlyLog(per_key=10, in_all=10, page=10), ends=7)
    await follower.catch_up()
    reply, (future,) = await follower.append(AppendRequest([(EntryType.FIRED, "key", b"")]))
    assert future.result() == 7
    assert (follower.own._own, follower.own._early) == ({}, {})
    assert follower.replica.applied == reply.before + 1


async def test_a_process_that_always_appends_has_the_counts_of_its_latest_entries() -> None:
    """However many entries of others have come since it last had no append under way."""
    follower = _follower(LogModel(per_key=10, in_all=10, page=10), ends=7)
    await follower.catch_up()
    with follower.own.appending():
        epoch = follower.replica.epoch
        for offset in range(1, MAX_OWN + 100):
            assert follower.apply_message(b"%b %d 12:f1 0 0 3 key" % (epoch.encode(), offset))
        (future,) = follower.apply_own(
            epoch, [LogEntry(offset, EntryType.FIRED, 1, 0, 0, "key", b"")]
        )
        assert future.result() == 7
        assert len(follower.own._early) <= MAX_OWN
    assert not follower.own._early


async def test_a_full_log_that_is_never_quiet_is_caught_up_with() -> None:
    """What is behind a gap was read with it: to read again would find the next gap."""

    class BusyLog(LogModel):
        is_busy = False

        async def read(self, after: int, limit: int) -> LogState:
            state = await super().read(after, limit)
            self._fire("other")
            return state

        async def last(self, keys: Sequence[str]) -> list[int]:
            found = await super().last(keys)
            self._fire("quiet")
            return found

        def _fire(self, key: str) -> None:
            if self.is_busy and self.content.head < 1_000:
                self.add([(EntryType.FIRED, key, b"")])

    log = BusyLog(per_key=10, in_all=10, page=10)
    follower = _follower(log, watched=["fired", "quiet"])
    await follower.catch_up()
    cursor = follower.replica.cursor(0)
    log.add([(EntryType.FIRED, "fired", b"")] + [(EntryType.FIRED, "other", b"")] * 20)
    log.is_busy = True
    await follower.catch_up()
    assert (follower.gaps, follower.replica.reads) == (1, 2)
    with pytest.raises(CursorExpiredError):
        follower.replica.position("fired", cursor)
    log.is_busy = False
    await follower.catch_up()
    assert follower.replica.position("quiet", cursor) == 0
    assert follower.replica.has_after("quiet", 0, 1)
    assert follower.replica.applied == log.content.head


def _follower(log: Any, ends: int = 0, watched: Sequence[str] = ()) -> Follower:
    replica = LogReplica(
        clock=MockClock(),
        max_signals_per_key=10,
        max_signals=10,
        max_bytes=1_000,
        max_value_bytes=1_000,
    )
    follower = Follower(log, replica, shards=1, has_key=lambda key: True, on_change=lambda: None)
    follower._listener = _Listener(ends, watched)
    return follower


class _Listener:
    def __init__(self, ends: int, watched: Sequence[str]) -> None:
        self._ends = ends
        self._watched = list(watched)

    def check(self, key: str) -> int:
        return self._ends

    def cancel(self, key: str) -> int:
        return 0

    def watched(self) -> list[str]:
        return self._watched
