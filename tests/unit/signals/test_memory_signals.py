"""What MemorySignals keeps, what it forgets, and that it never hides a gap."""

import copy
import gc
import pickle
from collections.abc import Callable

import pytest

from purgatory import BadCursorError, CursorExpiredError, InvalidValueError
from purgatory.signals import MemorySignals, Signal
from purgatory.testing import MockClock
from tests.cases import cases
from tests.unit.signals.kept_signals import kept, values


def test_a_signal_is_numbered_and_kept(signals: MemorySignals, clock: MockClock) -> None:
    """By its key, among all keys, with the time of day and its JSON."""
    clock.set_wall(1_700_000_000_000)
    signals.append("a", None)
    signals.append("b", 1)
    signal = signals.append("a", {"by": "card"})
    assert (signal.key, signal.seq, signal.offset) == ("a", 2, 3)
    assert (signal.at_ms, signal.value) == (1_700_000_000_000, {"by": "card"})
    assert signal.encoded == b'{"by":"card"}'
    assert signals.read("a", 0, 10)[-1] is signal
    assert (signals.head(), signals.last("a"), signals.last("b"), signals.last("c")) == (3, 3, 2, 0)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, b"null"),
        (True, b"true"),
        (0.5, b"0.5"),
        ("é\u2028", '"é\u2028"'.encode()),
        ([1, (2,)], b"[1,[2]]"),
        ({"a": [None]}, b'{"a":[null]}'),
    ],
)
def test_values_are_json(signals: MemorySignals, value: object, encoded: bytes) -> None:
    """Encoded once, without spaces, as UTF-8."""
    assert signals.append("a", value).encoded == encoded
    assert kept(signals) == (1, len(encoded), 1)


def recursive() -> object:
    value: list[object] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {1, 2}, b"bytes", object(), {(1, 2): 3}, "\ud800", 10**5_000],
    ids=["nan", "inf", "set", "bytes", "object", "tuple-key", "surrogate", "huge-int"],
)
def test_what_is_not_json_is_refused(signals: MemorySignals, value: object) -> None:
    """And leaves no trace: neither a signal nor a number that is missing later."""
    with pytest.raises(InvalidValueError, match="the value is not JSON"):
        signals.append("a", value)
    assert (kept(signals), signals.head(), signals.append("a", 1).seq) == ((0, 0, 0), 0, 1)


def test_a_value_without_an_end_is_refused(signals: MemorySignals) -> None:
    """One that holds itself."""
    with pytest.raises(InvalidValueError, match="the value is not JSON"):
        signals.append("a", recursive())
    assert kept(signals) == (0, 0, 0)


def test_a_value_is_bounded_in_bytes(make: Callable[..., MemorySignals]) -> None:
    """Bytes of JSON, not characters; the bound itself is allowed."""
    signals = make(max_value_bytes=10)
    signals.append("a", "x" * 8)
    with pytest.raises(
        InvalidValueError, match="takes 11 bytes as JSON, more than the limit of 10"
    ):
        signals.append("a", "x" * 9)
    with pytest.raises(InvalidValueError):
        signals.append("a", "é" * 5)
    assert kept(signals) == (1, 10, 1)


def test_whether_there_are_signals_after_a_position(signals: MemorySignals) -> None:
    """So many of that key, not of others."""
    first = signals.append("a", 1)
    signals.append("b", 1)
    signals.append("a", 2)
    assert signals.has_after("a", 0, 2) and not signals.has_after("a", 0, 3)
    assert signals.has_after("a", first.offset, 1) and not signals.has_after("a", first.offset, 2)
    assert not signals.has_after("a", signals.head(), 1) and not signals.has_after("c", 0, 1)


@cases(
    "cursor",
    ["", "1", "00", "x", "-1", "1.5", "0 ", "é", "0" * 12, "0" * 12 + "-", "0" * 12 + "-1e3"],
)
def test_a_cursor_that_is_not_one_of_ours(signals: MemorySignals, cursor: str) -> None:
    """Is a BadCursorError that says what a cursor is."""
    with pytest.raises(BadCursorError, match="use the cursor of an earlier answer"):
        signals.position("a", cursor)


@cases("suffix", ["0", "\n", " ", "\u0661"])
def test_a_cursor_with_something_behind_it(signals: MemorySignals, suffix: str) -> None:
    """Is bad, or ahead of every signal, but never taken for what is in front of it."""
    signals.append("a", 1)
    with pytest.raises(BadCursorError):
        signals.position("a", signals.cursor(1) + suffix)


def test_a_cursor_from_before_a_restart(make: Callable[..., MemorySignals]) -> None:
    """Is expired rather than bad: the reader cannot know, and reads its state anew."""
    before, after = make(), make()
    before.append("a", 1)
    after.append("a", 2)
    with pytest.raises(CursorExpiredError, match="from before a restart") as caught:
        after.position("a", before.cursor(1))
    assert (caught.value.key, caught.value.head) == ("a", after.cursor(1))
    assert after.position("a", caught.value.earliest) == 0
    assert str(caught.value).endswith(
        f"continue from '{caught.value.head}', or from '{caught.value.earliest}' for what is still "
        "kept"
    )


# Bounds


def test_the_latest_signal_is_kept_whatever_its_size(make: Callable[..., MemorySignals]) -> None:
    """Or refused, here or with the bounds: what is accepted reaches those who wait for it."""
    try:
        signals = make(max_bytes=8, max_value_bytes=100)
        signal = signals.append("a", "x" * 20)
    except ValueError:
        return
    assert signals.has_after("a", signal.offset - 1, 1)
    assert signals.read("a", signal.offset - 1, 1) == [signal]


def test_what_is_remembered_of_empty_keys_is_bounded(make: Callable[..., MemorySignals]) -> None:
    """With very many keys the longest empty are forgotten: cursors expire, numbers never repeat."""
    signals = make(max_signals=3)
    seqs: dict[str, int] = {}
    for number in range(10):
        seqs["first"] = signals.append("first", number).seq
    cursor = signals.cursor(signals.head())
    for number in range(50):
        signals.append(f"key {number}", number)
    with pytest.raises(CursorExpiredError):
        signals.position("first", cursor)
    assert signals.append("first", "again").seq > seqs["first"]
    for number in range(50):
        assert signals.append(f"key {number}", number).seq > 1


def test_a_key_that_fires_while_its_history_is_made(make: Callable[..., MemorySignals]) -> None:
    """By what the collector finds, whichever object is made: each has a number of its own."""

    class Firing:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            histories[-1].append("k", "inner")

    histories: list[MemorySignals] = []
    threshold = gc.get_threshold()
    for allocations in range(1, 30):
        signals = make(max_signals=100)
        histories.append(signals)
        # The youngest generation is enough, and others are large.
        gc.collect(0)
        Firing()
        try:
            gc.set_threshold(allocations, 1_000, 1_000)
            outer = signals.append("k", "outer")
        finally:
            gc.set_threshold(*threshold)
        gc.collect(0)
        found = signals.read("k", 0, 9)
        assert sorted(signal.value for signal in found) == ["inner", "outer"] and outer in found
        assert [(signal.seq, signal.offset) for signal in found] == [(1, 1), (2, 2)]
        assert (signals.statistics().signals, signals.statistics().keys) == (2, 1)


def test_what_has_made_way_is_let_go(make: Callable[..., MemorySignals]) -> None:
    """At once, and nothing else is kept for it: whoever still holds one does not hold others."""
    signals = make(max_signals_per_key=2, max_signals=5)
    held = signals.append("way 0", None)
    for number in range(1_000):
        signals.append(f"way {number % 3}", None)
    every = [thing for thing in gc.get_objects() if type(thing) is Signal]
    alive = [signal for signal in every if signal.key.startswith("way")]
    assert len(alive) == 5 + 1 and held in alive


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda signal: pickle.loads(pickle.dumps(signal))]
)
def test_a_copy_of_a_signal_is_that_of_one(
    make: Callable[..., MemorySignals], copied: Callable[[Signal], Signal]
) -> None:
    """However many it is kept among."""
    signals = make()
    for number in range(1_000):
        signals.append("a", [number])
    signal = signals.append("a", ["last"])
    twin = copied(signal)
    assert (twin.key, twin.seq, twin.offset) == ("a", 1_001, 1_001)
    assert (twin.at_ms, twin.value, twin.encoded) == (signal.at_ms, ["last"], b'["last"]')
    assert len(pickle.dumps(twin)) == len(pickle.dumps(signal)) < 200


def test_a_signal_that_fires_while_another_is_kept(make: Callable[..., MemorySignals]) -> None:
    """As the collector may have it, in the midst of `append`: none is lost, and numbers differ."""

    class Clock(MockClock):
        def wall_ms(self) -> int:
            if not nested:
                nested.append(None)
                nested[0] = signals.append("a", "inner")
            return super().wall_ms()

    nested: list[Signal | None] = []
    signals = MemorySignals(clock=Clock())
    outer = signals.append("a", "outer")
    assert nested == signals.read("a", 0, 1) and outer.seq == 2 and outer.offset == 2
    assert values(signals, "a") == ["inner", "outer"]
    signals.trim_through(1, 9)
    assert values(signals, "a") == ["outer"]


@pytest.mark.parametrize("meanwhile", ["ab", "acdef"])
def test_a_key_that_comes_and_goes_while_its_signal_is_kept(
    make: Callable[..., MemorySignals], meanwhile: str
) -> None:
    """Whatever is trimmed or forgotten in the midst of `append`, the later ones go on."""

    class Clock(MockClock):
        def wall_ms(self) -> int:
            keys, todo[:] = todo[:], []
            for key in keys:
                signals.append(key, None)
            return super().wall_ms()

    todo: list[str] = []
    signals = MemorySignals(clock=Clock(), max_signals=1, max_signals_per_key=1)
    signals.append("a", None)
    signals.append("b", None)
    todo += meanwhile
    signals.append("a", "outer")
    assert values(signals, "a") == ["outer"] and signals.statistics().keys == 1
    for key in "cdefg":
        signals.append(key, key)
        assert values(signals, key) == [key] and signals.statistics().signals == 1
