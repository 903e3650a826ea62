"""Reading page by page, by the cursor of each response, gives the history: all of it, in order."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from purgatory import Status
from purgatory.fastapi.watch.parked_requests import WatchResponses
from purgatory.fastapi.watch.request_parser import WatchTerms
from purgatory.signals import MemorySignals
from purgatory.testing import MockClock

KEYS = ("a", "b", "c")
# Of a signal besides its value, as JSON.
ENVELOPE = 120

fires = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 300)), max_size=30)


def fired(signals: MemorySignals, values: list[tuple[str, int]]) -> dict[str, list[int]]:
    """Fire a number for each, with so many characters behind it; return those of each key."""
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    for number, (key, size) in enumerate(values):
        signals.append(key, [number, "x" * size])
        found[key].append(number)
    return found


@given(values=fires, max_bytes=st.integers(1, 1500), limit=st.integers(1, 40))
def test_one_key(values: list[tuple[str, int]], max_bytes: int, limit: int) -> None:
    """Each page has a signal, all that fit and no more than `limit`; the last one says so."""
    signals = MemorySignals(clock=MockClock())
    expected = fired(signals, values)["a"]
    responses = WatchResponses(signals, max_bytes)
    terms = WatchTerms(wait=0, limit=limit)
    position, more = 0, True
    read: list[int] = []
    while more:
        status = Status.FIRED if len(read) < len(expected) else Status.EXPIRED
        body = responses.response(("a",), (position,), terms, status).body
        page = json.loads(body)
        more, position = page["more"], signals.position("a", page["cursor"])
        taken = [
            len(json.dumps(signal["value"], separators=(",", ":"))) for signal in page["signals"]
        ]
        assert len(taken) == 1 or sum(taken) + ENVELOPE * len(taken) <= max_bytes or not taken
        assert bool(taken) == (len(read) < len(expected)) and len(taken) <= limit
        read += [signal["value"][0] for signal in page["signals"]]
    assert read == expected


@given(values=fires, max_bytes=st.integers(1, 1500), limit=st.integers(1, 40))
def test_several_keys(values: list[tuple[str, int]], max_bytes: int, limit: int) -> None:
    """The room is for all keys; one that fired and had none is named, with the cursor it had."""
    signals = MemorySignals(clock=MockClock())
    expected = fired(signals, values)
    responses = WatchResponses(signals, max_bytes)
    terms = WatchTerms(wait=0, limit=limit, is_single=False)
    positions = dict.fromkeys(KEYS, 0)
    read: dict[str, list[int]] = {key: [] for key in KEYS}
    while read != expected:
        unread = [key for key in KEYS if len(read[key]) < len(expected[key])]
        where = tuple(positions.values())
        page = json.loads(responses.response(KEYS, where, terms, Status.FIRED).body)
        assert list(page["keys"]) == unread
        taken = 0
        for key, entry in page["keys"].items():
            assert entry["cursor"] == page["cursors"][key]
            read[key] += [signal["value"][0] for signal in entry["signals"]]
            assert entry["more"] == (len(read[key]) < len(expected[key]))
            taken += len(entry["signals"])
        assert taken >= 1
        positions = {key: signals.position(key, text) for key, text in page["cursors"].items()}
    assert signals.head() in positions.values() or not values
