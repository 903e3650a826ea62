"""Reading several keys of several logs: the cursors, and what a step costs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.errors import SignalsUnavailableError
from purgatory.fastapi.watch.streams import (
    Reading,
    cursor_of_positions,
    lost_signals,
    positions_of_cursor,
    unread_signals,
)
from purgatory.limits import Limits
from purgatory.signals.log_replica import LogReplica, ShardedSignals
from purgatory.signals.memory import MemorySignals
from purgatory.signals.model import Epoch
from purgatory.testing import MockClock

KEYS = tuple(f"k{number}" for number in range(20))
LOGS = 3


class Counted(ShardedSignals):
    """Counts how often it is asked for the log of keys."""

    asked = 0

    def part(self, keys: Iterable[str]) -> MemorySignals:
        self.asked += 1
        return super().part(keys)


def log_of(key: str) -> int:
    return int(key[1:]) % LOGS


def made(fired: Iterable[int]) -> Counted:
    clock = MockClock()
    replicas = [
        LogReplica(
            clock=clock,
            index=index,
            count=LOGS,
            limits=Limits(max_signals=10_000, max_signal_bytes=1_000_000, max_value_bytes=1000),
        )
        for index in range(LOGS)
    ]
    for index, replica in enumerate(replicas):
        replica.begin([Epoch(f"{index + 1:012x}", 0)], 0)
        replica.is_loaded = True
    offsets = list(range(LOGS))
    for seq, number in enumerate(fired, 1):
        log = log_of(KEYS[number])
        offsets[log] += LOGS
        replicas[log].replicate(KEYS[number], seq, offsets[log], 1, b"1", 0)
    return Counted(clock, replicas, log_of)


@given(fired=st.lists(st.integers(0, len(KEYS) - 1), max_size=60), rest=st.integers(0, 60))
def test_a_reading_resumes_after_any_signal(fired: list[int], rest: int) -> None:
    """By the cursor of the last one that was read: what follows is the same, and complete."""
    signals = made(fired)
    begun = tuple(map(log_of, KEYS))
    unread = unread_signals(signals, KEYS, begun)
    assert len(unread) == len(fired)
    reading = Reading(signals, KEYS, begun)
    assert reading.positions == begun
    for index, signal in enumerate(unread):
        cursor = reading.read(signal)
        assert cursor == cursor_of_positions(signals, KEYS, reading.positions)
        assert positions_of_cursor(signals, KEYS, cursor) == reading.positions
        if index == rest:
            assert unread_signals(signals, KEYS, reading.positions) == unread[index + 1 :]


def test_the_earliest_of_keys_in_one_log_is_behind_what_was_trimmed_of_any() -> None:
    """What another key kept from before that would be shown with a gap in it."""
    keys = KEYS[0], KEYS[LOGS]
    signals = made([LOGS, *[0] * 1001])
    unread = unread_signals(signals, keys, positions_of_cursor(signals, keys, "0"))
    assert {signal.key for signal in unread} == {KEYS[0]}


def test_a_step_costs_no_look_at_every_key() -> None:
    """Asking for the log of every key at each signal took 60 ms for a piece of 100 keys."""
    signals = made(number % len(KEYS) for number in range(1000))
    begun = tuple(map(log_of, KEYS))
    unread = unread_signals(signals, KEYS, begun)
    signals.asked = 0
    reading = Reading(signals, KEYS, begun)
    for signal in unread:
        reading.read(signal)
    assert len(unread) == 1000 and signals.asked == len(KEYS)


def test_no_cursor_is_given_out_while_a_loss_settles() -> None:
    """It could expire again, once the loss is in the log and known to every process."""
    replica = made([0] * 1001).replicas[0]
    key, position = KEYS[0], 0
    problem = lost_signals(replica, (key,), (position,))
    assert problem is not None and problem.kind.slug == "cursor-expired"
    replica.is_settling = True
    with pytest.raises(SignalsUnavailableError):
        lost_signals(replica, (key,), (position,))
