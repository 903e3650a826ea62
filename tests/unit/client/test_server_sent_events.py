"""Events read from bytes, however these are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.client.follow import MAX_BUFFER, Event, EventReader
from purgatory.errors import PurgatoryError

LINES = st.sampled_from(
    [
        "id: 7",
        "id:8",
        "event: signal",
        "data: {}",
        "data:é",
        "data",
        ": comment",
        "retry: 50",
        "x: y",
    ]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def _events(pieces: list[bytes]) -> list[Event]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


@given(st.lists(st.lists(LINES)), ENDS, st.lists(st.integers(0, 200)))
def test_pieces_do_not_matter(blocks: list[list[str]], end: str, cuts: list[int]) -> None:
    """Any way to cut a stream gives the same events."""
    text = "".join(line + end for block in blocks for line in [*block, ""]) + ":" + end
    data = text.encode()
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(bounds)]
    assert _events(pieces) == _events([data])
    assert len(_events([data])) == sum(
        any(line.startswith("data") for line in block) for block in blocks
    )


def test_fields() -> None:
    """As the standard says: one space, several lines of data, no event without data."""
    data = (
        b"id: 1\nevent: a\ndata:  x\ndata: y\nretry: 20\n\nid: 2\n\n:\n\ndata: z\n\ndata: cut off"
    )
    first, second = _events([data])
    assert first == Event("a", " x\ny", "1", 20)
    assert second == Event("message", "z", None, None)


def test_an_endless_line() -> None:
    """The memory of a client is bounded."""
    with pytest.raises(PurgatoryError, match="more than"):
        _events([b"x" * (MAX_BUFFER // 16)] * 20)
