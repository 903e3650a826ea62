"""The bytes of events, for clients that are less careful than the standard."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from purgatory.fastapi.watch.parked_requests import WatchResponses
from purgatory.fastapi.watch.streams import EventEncoder
from purgatory.signals import MemorySignals
from purgatory.testing import MockClock

texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(key=texts, value=texts)
@example(key="\u2028", value="\x85 \u2028 \u2029 \r\n\ndata: no\x0b\x0c\x1c")
def test_no_value_ends_a_line(key: str, value: str) -> None:
    """Not for `str.splitlines` either, which ends lines at U+0085, U+2028 and U+2029, too."""
    signals = MemorySignals(clock=MockClock())
    encoder = EventEncoder(WatchResponses(signals, 1024))
    signal = signals.append(key, {value: [value]})
    text = encoder.event(signal, "cursor-1").decode()
    assert text.splitlines() == text.split("\n")[:-1]
    cursor, kind, data, end = text.splitlines()
    assert (cursor, kind, end) == ("id: cursor-1", "event: signal", "")
    event = json.loads(data.removeprefix("data: "))
    assert (event["key"], event["value"]) == (key, {value: [value]})
