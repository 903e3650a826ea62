"""Requests that are repeated with the same Idempotency-Key, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from purgatory.fastapi import Problem
from purgatory.fastapi.http import idempotency
from purgatory.fastapi.http.idempotency import RepeatedRequests
from purgatory.fastapi.http.parameters import parse_idempotency_key
from purgatory.fastapi.http.requests import UNRESTRICTED, Permit, RawRequest
from purgatory.fastapi.http.responses import RawResponse
from purgatory.testing import MockClock
from tests.patience import PATIENCE_S


class Work:
    """Answers with how often it was done; held back and failing where a test wants that."""

    def __init__(self, size: int = 0) -> None:
        self.done = 0
        self.error: BaseException | None = None
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self._size = size

    async def __call__(self) -> RawResponse:
        self.done += 1
        number = self.done
        await self.may_go_on.wait()
        if self.error is not None:
            raise self.error
        return RawResponse.from_json(201, str(number).encode() + b" " * self._size)


def _raw(
    key: str | None = "k",
    body: bytes = b"{}",
    path: str = "/p/keys/a",
    permit: Permit = UNRESTRICTED,
) -> RawRequest:
    headers = [] if key is None else [(b"idempotency-key", key.encode("latin-1"))]
    return RawRequest(path, path.encode(), b"", headers, body=body, permit=permit)


async def _respond(repeats: RepeatedRequests, raw: RawRequest, work: Work) -> RawResponse:
    header = raw.header(b"idempotency-key")
    key = None if header is None else parse_idempotency_key(header)
    return await repeats.respond(key, raw, work)


@pytest.fixture
def repeats(clock: MockClock) -> RepeatedRequests:
    """What is remembered, at the time of `clock`."""
    return RepeatedRequests(clock)


async def test_a_repeat_waits_for_the_first_that_is_at_work(repeats: RepeatedRequests) -> None:
    """One of those who wait may leave: the others are answered all the same."""
    work = Work()
    work.may_go_on.clear()
    asked = [asyncio.ensure_future(_respond(repeats, _raw(), work)) for _ in range(4)]
    await asyncio.sleep(0)
    asked[2].cancel()
    await asyncio.sleep(0)
    work.may_go_on.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert work.done == 1
    assert isinstance(found.pop(2), asyncio.CancelledError)
    assert len(found) == 3 and len(set(map(id, found))) == 1


@pytest.mark.parametrize(
    "other", [_raw(body=b"[]"), _raw(path="/p/keys/b")], ids=["body", "address"]
)
async def test_another_request_with_the_same_key_is_refused(
    repeats: RepeatedRequests, other: RawRequest
) -> None:
    """422, while the first is at work too; and the first is still remembered."""
    work = Work()
    work.may_go_on.clear()
    first = asyncio.ensure_future(_respond(repeats, _raw(), work))
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(Problem) as caught:
            await _respond(repeats, other, work)
        assert (caught.value.status, caught.value.kind.slug) == (422, "idempotency-conflict")
        work.may_go_on.set()
        await first
    assert await _respond(repeats, _raw(), work) is await first
    assert work.done == 1


@pytest.mark.parametrize(
    "error", [ValueError("no"), asyncio.CancelledError()], ids=["error", "left"]
)
async def test_what_failed_may_be_tried_again(
    repeats: RepeatedRequests, error: BaseException
) -> None:
    """Whoever waited for the first is told that it failed, and nobody is left to wait for ever."""
    work = Work()
    work.error = error
    work.may_go_on.clear()
    first = asyncio.ensure_future(_respond(repeats, _raw(), work))
    await asyncio.sleep(0)
    repeated = asyncio.ensure_future(_respond(repeats, _raw(), work))
    await asyncio.sleep(0)
    work.may_go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        told = await asyncio.gather(first, repeated, return_exceptions=True)
    assert type(told[0]) is type(error)
    assert isinstance(told[1], ValueError | Problem)
    work.error = None
    assert (await _respond(repeats, _raw(), work)).body == b"2"
    assert (await _respond(repeats, _raw(), work)).body == b"2"


async def test_ten_minutes(repeats: RepeatedRequests, clock: MockClock) -> None:
    """From the first request; a repeat does not make it longer."""
    work = Work()
    await _respond(repeats, _raw(), work)
    clock.advance(599_999)
    assert (await _respond(repeats, _raw(), work)).body == b"1"
    clock.advance(1)
    assert (await _respond(repeats, _raw(), work)).body == b"2"


async def test_the_oldest_makes_way(
    repeats: RepeatedRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more answers than are kept; ten thousand of them are."""
    assert idempotency.MAX_RESPONSES == 10_000
    monkeypatch.setattr(idempotency, "MAX_RESPONSES", 3)
    work = Work()
    for key in "abcd":
        await _respond(repeats, _raw(key), work)
    assert [(await _respond(repeats, _raw(key), work)).body for key in "dc"] == [b"4", b"3"]
    assert len(repeats._remembered) <= 3
    assert (await _respond(repeats, _raw("a"), work)).body == b"5"


@pytest.mark.parametrize("limit", ["MAX_RESPONSES", "MAX_BYTES"])
async def test_a_client_makes_way_for_itself(
    repeats: RepeatedRequests, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """One that has its equal part; what another one keeps within its part stays."""
    monkeypatch.setattr(idempotency, limit, 8 if limit == "MAX_RESPONSES" else 800)
    work = Work(size=98)
    ann, bob = Permit("ann"), Permit("bob")
    kept = [await _respond(repeats, _raw(f"k{number}", permit=ann), work) for number in range(3)]
    for number in range(40):
        await _respond(repeats, _raw(f"k{number}", permit=bob), work)
        await _respond(repeats, _raw("same", permit=UNRESTRICTED), work)
    for number, response in enumerate(kept):
        assert await _respond(repeats, _raw(f"k{number}", permit=ann), work) is response
    # One who comes when it is full takes the room of who has most.
    await _respond(repeats, _raw("first", permit=Permit("eve")), work)
    assert await _respond(repeats, _raw("k0", permit=ann), work) is kept[0]
    assert await _respond(repeats, _raw("k39", permit=bob), work) is not None
    assert sum(len(owned.names) for owned in repeats._owners.values()) == len(repeats._remembered)
    assert sum(owned.bytes for owned in repeats._owners.values()) == repeats._bytes


async def test_one_that_made_way_while_at_work_takes_no_other_with_it(
    repeats: RepeatedRequests, clock: MockClock
) -> None:
    """It fails after its time, when a newer one of the same key is remembered."""
    slow, quick = Work(), Work()
    slow.may_go_on.clear()
    slow.error = ValueError("too late")
    first = asyncio.ensure_future(_respond(repeats, _raw(), slow))
    await asyncio.sleep(0)
    clock.advance(600_001)
    kept = await _respond(repeats, _raw(), quick)
    slow.may_go_on.set()
    with pytest.raises(ValueError, match="too late"):
        await first
    assert await _respond(repeats, _raw(), quick) is kept
    assert quick.done == 1
