"""What MemorySignals really keeps: as many bytes as it counts, and a bounded amount per signal."""

import gc
import json
import tracemalloc
import weakref
from contextlib import suppress

from hypothesis import example, given, settings
from hypothesis import strategies as st

from purgatory import InvalidValueError
from purgatory.signals import MemorySignals
from purgatory.testing import MockClock
from tests.nightly import by_night

# For the signal itself, the header of its bytes, and its numbers in plain Python.
BYTES_PER_SIGNAL = 300
SIGNALS = 50

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@settings(deadline=None, max_examples=by_night(20, 6))
@given(text=json_values.map(json.dumps))
@example(text=json.dumps({"text": "x" * 1_000}))
@example(text=json.dumps([[]] * 1_000))
@example(text=json.dumps([{"": {}}] * 100))
@example(text=json.dumps("\U0001f600" + "x" * 1_000))
def test_signals_take_the_memory_that_is_counted(text: str) -> None:
    """Whatever the shape of their values: a list of empty lists takes 22 times its JSON."""
    signals = MemorySignals(clock=MockClock())
    signals.append("a", None)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(SIGNALS):
            signals.append("a", json.loads(text))
        for signal in signals.read("a", 1, SIGNALS):
            signals.value(signal)
        # Releases the value that was read last, the only one.
        signals.append("a", None)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown <= signals.statistics().bytes + (SIGNALS + 1) * BYTES_PER_SIGNAL
    assert all(signal.value == json.loads(text) for signal in signals.read("a", 1, SIGNALS))


def test_the_readers_of_a_signal_share_one_value() -> None:
    """Also after another fire: each would take the time and the memory of its own."""
    signals = MemorySignals(clock=MockClock())
    first = signals.append("a", {"by": ["card"]})
    for number in (None, 1, "text"):
        shared = signals.value(first)
        assert shared == {"by": ["card"]} and signals.value(first) is shared
        assert signals.value(signals.append("b", number)) == number


class Fired(dict[str, int]):
    """A value whose end can be observed."""


def test_what_was_fired_is_not_retained() -> None:
    """Only its JSON is: its later changes are not seen, and its end runs no code in `append`."""
    signals = MemorySignals(clock=MockClock())
    fired = Fired(number=1)
    end = weakref.ref(fired)
    signal = signals.append("a", fired)
    fired["number"] = 2
    assert signals.value(signal) == {"number": 1}
    del fired
    assert end() is None


def test_a_value_that_was_encoded_can_be_decoded_further_down_the_stack() -> None:
    """However deep it is nested."""
    signals = MemorySignals(clock=MockClock())
    signal = None
    for depth in range(1_000, 0, -1):
        with suppress(InvalidValueError):
            signal = signals.append("a", nested(depth))
            break
    assert signal is not None
    signals.append("a", None)

    def read(calls: int) -> object:
        return read(calls - 1) if calls else signals.value(signal)

    assert signals.encode(read(5)) == signal.encoded


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value
