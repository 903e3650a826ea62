"""WatchResponses at the bound of their bytes, and at a loss."""

from __future__ import annotations

import json
from typing import Any

from purgatory import Status
from purgatory.fastapi.watch.request_parser import WatchTerms
from purgatory.fastapi.watch.responses import WatchResponses
from purgatory.signals import MemorySignals
from purgatory.testing import MockClock
from tests.cases import cases

# Of a signal whose value is one digit.
SIGNAL_BYTES = 120 + 1


def respond(
    signals: MemorySignals,
    positions: dict[str, int],
    *,
    max_bytes: int = 10_000,
    status: Status = Status.FIRED,
    is_single: bool = True,
) -> Any:
    terms = WatchTerms(wait=0, is_single=is_single)
    where = tuple(positions), tuple(positions.values())
    return json.loads(WatchResponses(signals, max_bytes).response(*where, terms, status).body)


@cases("less, told", [(0, [1, 2, 3]), (1, [1, 2])])
def test_signals_of_a_key_that_just_fit(less: int, told: list[int]) -> None:
    """One byte less leaves the last one for the next response."""
    signals = MemorySignals(clock=MockClock())
    for value in (1, 2, 3):
        signals.append("k", value)
    signals.append("other", 4)
    document = respond(signals, {"k": 0}, max_bytes=3 * SIGNAL_BYTES - less)
    assert [signal["value"] for signal in document["signals"]] == told
    assert document["more"] is bool(less)
    assert document["cursor"] == signals.cursor(2 if less else 4)


@cases("less", [0, 1])
def test_signals_of_several_keys_that_just_fit(less: int) -> None:
    """One byte less leaves the last key without a signal, and with the cursor it had."""
    signals = MemorySignals(clock=MockClock())
    for key in "ab":
        signals.append(key, 1)
    document = respond(
        signals, {"a": 0, "b": 0}, max_bytes=2 * SIGNAL_BYTES - less, is_single=False
    )
    entry = document["keys"]["b"]
    assert (len(entry["signals"]), entry["more"]) == (1 - less, bool(less))
    assert document["cursors"] == {"a": signals.cursor(2), "b": signals.cursor(0 if less else 2)}
    assert (len(document["keys"]["a"]["signals"]), document["keys"]["a"]["more"]) == (1, False)


def test_each_signal_has_its_own_time() -> None:
    """To the millisecond, within a second and in the next one."""
    clock = MockClock(start_ms=1_800_000_000_001)
    signals = MemorySignals(clock=clock)
    for ms in (1, 998, 1):
        signals.append("k", None)
        clock.advance(ms)
    signals.append("k", None)
    document = respond(signals, {"k": 0})
    assert [signal["at"] for signal in document["signals"]] == [
        "2027-01-15T08:00:00.001Z",
        "2027-01-15T08:00:00.002Z",
        "2027-01-15T08:00:01.000Z",
        "2027-01-15T08:00:01.001Z",
    ]


@cases("at_ms, at", [(7, "1970-01-01T00:00:00.007Z"), (-1, "1969-12-31T23:59:59.999Z")])
def test_a_clock_that_was_never_set_has_times_too(at_ms: int, at: str) -> None:
    """Around the beginning of the clock's time, in the first response."""
    signals = MemorySignals(clock=MockClock(at_ms))
    signals.append("k", None)
    (signal,) = respond(signals, {"k": 0})["signals"]
    assert signal["at"] == at


@cases("is_lost", [True, False])
def test_a_drained_wait_keeps_its_cursor_if_signals_were_lost(*, is_lost: bool) -> None:
    """So that the next wait responds 410; from behind the loss it has read what there is."""
    signals = MemorySignals(clock=MockClock())
    signals.append("k", 1)
    signals.drop("k")
    signals.append("other", 1)
    position = signals.earliest("k") - is_lost
    document = respond(signals, {"k": position}, status=Status.DRAINED)
    expected = signals.cursor(position if is_lost else signals.head())
    assert (document["cursor"], document["signals"]) == (expected, [])


@cases("status", [Status.EXPIRED, Status.DRAINED, Status.CANCELLED])
@cases("has_signals", [True, False])
def test_only_a_conditional_wait_that_expired_is_not_modified(
    status: Status, *, has_signals: bool
) -> None:
    """Any other end is news, which a body tells; and so are signals."""
    signals = MemorySignals(clock=MockClock())
    signals.append("k", 1)
    terms = WatchTerms(wait=0, is_conditional=True)
    responses = WatchResponses(signals, 10_000)
    response = responses.response(("k",), (0 if has_signals else 1,), terms, status)
    if status is Status.EXPIRED and not has_signals:
        assert (response.status, response.body) == (304, b"")
    else:
        document = json.loads(response.body)
        assert (response.status, document["reason"]) == (200, status.value)
        assert len(document["signals"]) == has_signals
