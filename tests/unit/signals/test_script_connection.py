"""Frames of Redis's protocol, and messages that are taken before its client reads them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.signals.redis import script_connection
from purgatory.signals.redis.script_connection import (
    MAX_WAITING,
    FrameBuffer,
    MessageTap,
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


class Client(asyncio.Protocol):
    """The protocol behind the tap, and the transport before it."""

    def __init__(self) -> None:
        self.read = b""
        self.protocol: asyncio.Protocol = self

    def data_received(self, data: bytes) -> None:
        self.read += data

    def get_protocol(self) -> asyncio.Protocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol


def _tap(taken: list[bytes], *, are_taken: bool = True) -> tuple[MessageTap, Client]:
    client: Any = Client()

    def apply(data: bytes) -> bool:
        if are_taken and not data.startswith(b"left"):
            taken.append(data)
            return True
        return False

    return MessageTap(client, b"ours", apply), client


def _message(channel: bytes, data: bytes, kind: bytes = b">") -> bytes:
    parts = (b"message", channel, data)
    return kind + b"3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


payloads = st.binary(max_size=20) | st.sampled_from([b"", b"left", b"\r\n", b">3\r\n$7\r\nmessage"])
frames = st.one_of(
    st.tuples(st.just(b"ours"), payloads, st.sampled_from([b">", b"*"])),
    st.tuples(st.just(b"other"), payloads, st.just(b">")),
    st.sampled_from(
        [b"+PONG\r\n", b":1\r\n", b"*2\r\n$4\r\npong\r\n$0\r\n\r\n", b"$-1\r\n", b"*-1\r\n"]
    ),
)


@given(sent=st.lists(frames, max_size=6), sizes=st.lists(st.integers(1, 30), max_size=40))
def test_each_message_is_taken_or_passed_on_whole_and_in_order(
    sent: list[Any], sizes: list[int]
) -> None:
    """However the bytes are cut."""
    taken: list[bytes] = []
    tap, client = _tap(taken)
    texts = [each if isinstance(each, bytes) else _message(*each) for each in sent]
    data = b"".join(texts)
    for size in [*sizes, len(data)]:
        tap.data_received(data[:size])
        data = data[size:]
    is_taken = [
        not isinstance(each, bytes) and each[0] == b"ours" and not each[1].startswith(b"left")
        for each in sent
    ]
    pairs = list(zip(sent, texts, is_taken, strict=True))
    assert taken == [each[1] for each, _, is_ours in pairs if is_ours]
    assert client.read == b"".join(text for _, text, is_ours in pairs if not is_ours)


@cases("junk", [b"?1\r\n", b"$x\r\n", b"%1\r\n"])
def test_what_is_not_understood_is_left_to_the_client(junk: bytes) -> None:
    """And everything after it: where frames begin is not known any more."""
    taken: list[bytes] = []
    tap, client = _tap(taken)
    message = _message(b"ours", b"a")
    tap.data_received(message + junk)
    tap.data_received(message)
    assert taken == [b"a"]
    assert client.read == junk + message


def test_what_waits_for_the_end_of_a_frame_is_bounded() -> None:
    """The client reads what is longer."""
    tap, client = _tap([])
    head = b"$%d\r\n" % (2 * MAX_WAITING)
    tap.data_received(head[:3])
    assert client.read == b""
    tap.data_received(head[3:])
    tap.data_received(b"xx")
    assert client.read == head + b"xx"


def test_the_end_of_the_connection_passes_on_what_has_arrived() -> None:
    """A frame that is cut."""
    tap, client = _tap([])
    tap.data_received(b"$5\r\nab")
    tap.eof_received()
    tap.connection_lost(None)
    assert client.read == b"$5\r\nab"


def test_a_connection_that_cannot_be_tapped_is_left_alone() -> None:
    """As of a redis-py that keeps it under another name."""
    assert not MessageTap.attach(object(), b"ours", lambda data: True)
