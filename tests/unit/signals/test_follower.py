"""Messages in the channel of a log, whoever has sent them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from purgatory.errors import CursorExpiredError
from purgatory.limits import Limits
from purgatory.signals.log_replica import LogReplica
from purgatory.signals.model import EntryType, LogEntry
from purgatory.signals.redis.entry_applier import MAX_OWN
from purgatory.signals.redis.entry_codec import AppendReply, AppendRequest, split_message
from purgatory.signals.redis.follower import Follower
from purgatory.signals.redis.shard_log import LogState
from purgatory.testing import MockClock
from tests.cases import cases
from tests.properties.log_model import LogModel

EPOCH = b"000000000001"


@cases(
    "message",
    [
        b"",
        b"x",
        b"a 1 6:f1 0 0",
        EPOCH + b" 1 ",
        EPOCH + b" 1 0:",
        EPOCH + b" 1 -3:",
        EPOCH + b" 1 9:f",
        EPOCH + b" 1 5:hello",
        EPOCH + b" 1" + b"0" * 300 + b" 5:hello",
        b"\xff" * 12 + b" 1 5:hello",
    ],
)
async def test_a_message_that_is_none_has_the_log_read(message: bytes) -> None:
    """Whatever it is: nothing of it is applied, and following continues."""
    log = LogModel(per_key=10, in_all=10, page=10)
    follower = await _caught_up(log)
    log.add([(EntryType.FIRED, "key", b"")])
    assert not follower.applier.apply_message(message)
    await follower._handle("", message)
    await follower.catch_up()
    assert follower.replica.applied == 1


VALUES = {
    "no JSON": b"x",
    "nothing": b"",
    "two values": b"1 2",
    "a forged event": b"1\n\nevent: signal\ndata: {}",
    "line breaks in JSON": b"[\n\n]",
    "a carriage return in JSON": b"[\r]",
    "an unfinished string": b'"a',
    "a control character": b'"\x00"',
    "NaN": b"NaN",
    "infinity": b"[-Infinity]",
    "a number beyond all": b"1e999",
    "too many digits": b"1" * 5_000,
    "no UTF-8": b'"\xff"',
    "an encoded surrogate": b'"\xed\xa0\x80"',
    "a lone surrogate": b'"\\ud800"',
    "65 lists": b"[" * 65 + b"]" * 65,
    "65 objects": b'{"a":' * 65 + b"1" + b"}" * 65,
    "a depth beyond any parser": b"[" * 30_000,
    "too many bytes": b'"%b"' % (b"a" * 70_000),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
async def test_a_value_that_is_no_json_of_ours_reaches_nobody(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """In a message, or in the log: there, it expires the cursors of its key."""
    follower = await _caught_up()
    replica, codec = follower.replica, follower.log.codec
    cursor = replica.cursor(0)
    entry = b"f1 0 0 3 key" + value
    await _refuse(follower, entry)
    assert replica.applied == 0
    texts = [b"1 " + entry, b"2 f1 0 0 5 other1", b"3 f2 0 1 3 key2"]
    await follower.applier.apply_page(await codec.page(texts))
    assert [signal.value for signal in replica.read("other", 0, 9)] == [1]
    assert [signal.value for signal in replica.read("key", 0, 9)] == [2]
    with pytest.raises(CursorExpiredError):
        replica.position("key", cursor)
    assert replica.position("other", cursor) == 0
    [line] = caplog.records
    assert line.message.startswith("1 entries") and "the one at 1: " in line.message


@cases(
    "entry",
    [
        b"",
        b"hello",
        b"q1 0 0 3 key1",
        b"f1 %b 0 3 key1" % (b"9" * 300),
        b"f1 253402300800000 0 3 key1",
        b"f1 -1 0 3 key1",
        b"f%b 0 0 3 key1" % (b"9" * 300),
        b"f1 0 1 3 key1",
        b"f1 0 0 %b key1" % (b"9" * 300),
        b"f1 0 0 9 key1",
        b"f1 0 0 0 1",
        b"f1 0 0 1 \xff1",
        b"f1 0 0 1 \n1",
        b"f1 0 0 3@x key1",
        b"f1 0 0 300 " + b"k" * 300 + b"1",
    ],
)
async def test_an_entry_that_is_none_is_passed_over(entry: bytes) -> None:
    """Those behind it arrive, and it is shown to nobody."""
    follower = await _caught_up()
    await _refuse(follower, entry)
    texts = [b"1 " + entry, b"2 f1 0 0 5 other1"]
    await follower.applier.apply_page(await follower.log.codec.page(texts))
    replica = follower.replica
    assert [signal.value for signal in replica.read("other", 0, 9)] == [1]
    assert replica.statistics().signals == 1
    assert (replica.applied, replica.head()) == (2, 2)


def test_texts_that_do_not_fit_are_refused() -> None:
    """A negative size would be read for ever."""
    for text in (b"-3:", b"4:abc"):
        with pytest.raises(ValueError, match="does not fit"):
            split_message(EPOCH + b" 1 " + text)


async def test_waits_for_a_position_that_never_comes_leave_nothing() -> None:
    """A client may make such a cursor up."""
    follower = await _caught_up()
    for _ in range(100):
        assert not await follower.applier.reach(1_000, 0)
    assert not follower.applier._behind


async def test_own_entries_that_do_not_arrive_are_bounded() -> None:
    """As where the channel may not be subscribed to."""
    follower = await _caught_up()
    epoch = follower.replica.epoch
    for offset in range(2, MAX_OWN + 100):
        entry = LogEntry(offset, EntryType.FIRED, 1, 0, 0, "key", b"1")
        (future,) = follower.applier.apply_own(epoch, [entry])
        if offset == 2:
            first = future
    assert len(follower.applier._own) <= MAX_OWN
    assert first.result() == 0


async def test_a_message_that_overtakes_the_reply_keeps_the_count_of_what_was_ended() -> None:
    """The fire that completed the operations is told so."""

    class EarlyLog(LogModel):
        async def append(self, request: AppendRequest) -> AppendReply:
            reply = await super().append(request)
            (entry,) = self.messages.pop()[1]
            text = b"f%d 0 0 3 key1" % entry.seq
            message = b"%b %d %d:%b" % (reply.epoch.encode(), entry.offset, len(text), text)
            assert follower.applier.apply_message(message)
            return reply

    follower = _follower(EarlyLog(per_key=10, in_all=10, page=10), ends=7)
    await follower.catch_up()
    request = AppendRequest([(EntryType.FIRED, "key", b"")])
    follower.applier.begin_append()
    reply = await follower.log.append(request)
    (future,) = follower.applier.apply_own(reply.epoch, request.entries(reply))
    follower.applier.end_append()
    assert future.result() == 7
    assert (follower.applier._own, follower.applier._early) == ({}, {})
    assert follower.replica.applied == reply.before + 1


async def test_a_process_that_always_appends_has_the_counts_of_its_latest_entries() -> None:
    """However many entries of others have come since it last had no append under way."""
    follower = await _caught_up(ends=7)
    follower.applier.begin_append()
    epoch = follower.replica.epoch
    for offset in range(1, MAX_OWN + 100):
        assert follower.applier.apply_message(b"%b %d 13:f1 0 0 3 key1" % (epoch.encode(), offset))
    (future,) = follower.applier.apply_own(
        epoch, [LogEntry(offset, EntryType.FIRED, 1, 0, 0, "key", b"")]
    )
    assert future.result() == 7
    assert len(follower.applier._early) <= MAX_OWN
    follower.applier.end_append()
    assert not follower.applier._early


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
    follower = await _caught_up(log, watched=["fired", "quiet"])
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


async def test_a_log_that_grows_while_it_is_read_is_left_to_messages() -> None:
    """Each page takes the server's time: read is what was there when the reading began."""

    class GrowingLog(LogModel):
        pages = 0

        async def read(self, after: int, limit: int) -> LogState:
            self.pages += 1
            state = await super().read(after, limit)
            self.add([(EntryType.FIRED, "key", b"")] * (10 if self.pages < 100 else 0))
            return state

    log = GrowingLog(per_key=10_000, in_all=10_000, page=10)
    log.add([(EntryType.FIRED, "key", b"")] * 25)
    follower = await _caught_up(log)
    assert (log.pages, follower.replica.applied) == (3, 30)


async def _caught_up(log: Any = None, **options: Any) -> Follower:
    """Return a follower that has read its log."""
    follower = _follower(log or LogModel(per_key=10, in_all=10, page=10), **options)
    await follower.catch_up()
    return follower


async def _refuse(follower: Follower, entry: bytes) -> None:
    message = b"%b 1 %d:%b" % (EPOCH, len(entry), entry)
    assert not follower.applier.apply_message(message) and not await follower.applier.apply_long(
        message
    )


def _follower(log: Any, ends: int = 0, watched: Sequence[str] = ()) -> Follower:
    limits = Limits(
        max_signals_per_key=10, max_signals=10, max_signal_bytes=1_000, max_value_bytes=1_000
    )
    replica = LogReplica(clock=MockClock(), limits=limits)
    follower = Follower(log, replica, shards=1, has_key=lambda key: True, on_change=lambda: None)
    listener: Any = _Listener(ends, watched)
    follower.applier.listener = listener
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
