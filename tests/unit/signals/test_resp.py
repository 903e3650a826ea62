"""Frames of Redis's protocol, as they arrive."""

from __future__ import annotations

import pytest

from purgatory.signals.redis import script_connection
from purgatory.signals.redis.script_connection import (
    MAX_LINE,
    MAX_PARTS,
    MAX_WAITING,
    FrameBuffer,
    frame_end,
)
from tests.cases import cases


def test_frames_within_frames() -> None:
    """Whatever is missing of one, its end is not taken for reached."""
    text = b"*2\r\n*1\r\n:1\r\n$2\r\nab\r\n"
    assert frame_end(text, 0) == len(text)
    for size in range(len(text)):
        assert size < frame_end(text[:size], 0) <= len(text)


@cases(
    "junk",
    [
        b"?1\r\n",
        b"$x\r\n",
        b"%1\r\n",
        b"*1\r\n" * MAX_PARTS,
        b"*%d\r\n" % MAX_PARTS,
        b"-" + b"x" * MAX_LINE,
    ],
)
def test_what_is_no_frame_of_ours(junk: bytes) -> None:
    """The frames before it are given out, and it waits to be taken."""
    frames = FrameBuffer()
    assert frames.add(b"+OK\r\n" + junk) == (b"+OK\r\n", [5])
    assert frames.is_broken
    assert frames.take() == junk


@pytest.mark.parametrize("count", [10, 3_000])
def test_the_cost_of_a_long_frame_does_not_depend_on_its_pieces(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """It is joined and read a few times, not once for each piece."""
    looks = []

    def counted(data: bytes, at: int) -> int:
        looks.append(len(data))
        return frame_end(data, at)

    monkeypatch.setattr(script_connection, "frame_end", counted)
    size = MAX_WAITING - 100
    frame = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$%d\r\n%b\r\n" % (size, b"x" * size)
    frames = FrameBuffer()
    step = len(frame) // count
    complete = [frames.add(frame[at : at + step]) for at in range(0, len(frame), step)]
    assert complete[-1] == (frame, [len(frame)])
    assert complete[:-1] == [(b"", [])] * (len(complete) - 1)
    assert len(looks) < 10
    assert sum(looks) < 3 * len(frame)
