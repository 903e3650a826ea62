"""The time that a fire may take, in virtual time."""

from __future__ import annotations

import asyncio
from asyncio import Future
from types import SimpleNamespace
from typing import Any

import pytest

from purgatory import Limits
from purgatory.errors import SignalsUnavailableError
from purgatory.group_commit import RoundTripTimeout
from purgatory.signals.model import EntryType
from purgatory.signals.redis.entry_codec import AppendRequest
from purgatory.signals.redis.shard_log import FireDeadlines, ShardLog
from tests.cases import cases
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture

TIMEOUT_S = 2.0


class Silence:
    """A server that does not reply in time, and its connection and client."""

    def __init__(self, *, knows_scripts: bool) -> None:
        self.is_open = True
        self.timeout = RoundTripTimeout(TIMEOUT_S)
        self.fsync_ms: int | None = None
        self.connection_pool = SimpleNamespace(_available_connections=(), connection_kwargs={})
        self.sent: list[bytes] = []
        self._knows_scripts = knows_scripts

    @property
    def client(self) -> Silence:
        return self

    def channel(self, name: str) -> str:
        return name

    async def drop_connections(self) -> None:
        """Nothing is closed here."""

    def send_encoded(self, count: int, parts: bytes) -> Future[bytes | None]:
        self.sent.append(parts)
        loop = asyncio.get_running_loop()
        reply: Future[bytes | None] = loop.create_future()
        if not self._knows_scripts:
            loop.call_later(TIMEOUT_S * 0.9, reply.set_result, None)
        return reply

    def abort(self) -> None:
        """It stays open here: the next command hangs, too."""

    async def execute_command(self, *command: Any) -> bytes:
        await asyncio.sleep(1_000)
        return b""


class Replies(Silence):
    """A server that appends all that it is sent, and replies at once until it is silent."""

    is_silent = False

    def send_encoded(self, count: int, parts: bytes) -> Future[bytes | None]:
        if self.is_silent:
            return super().send_encoded(count, parts)
        reply: Future[bytes | None] = asyncio.get_running_loop().create_future()
        reply.set_result(b"1:e" + b"12:ok 0 1000 1 " * parts.count(b"$1\r\nf\r\n"))
        return reply


def new_log(server: Silence) -> ShardLog:
    """Return a log of a server."""
    each: Any = server
    log = ShardLog("{x}:", each, FireDeadlines(server.timeout), shards=1, limits=Limits())
    log.connect(each)
    return log


async def fired_after(log: ShardLog, key: str) -> float:
    """Fire; return the seconds until it was refused."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    with pytest.raises(SignalsUnavailableError, match=r"2 s have passed.*made again"):
        await log.append(AppendRequest([(EntryType.FIRED, key, b"1")]))
    return loop.time() - begun_s


@cases("knows_scripts", [True, False])
async def test_a_fire_behind_one_that_hangs_is_refused_in_its_own_time(
    *, knows_scripts: bool
) -> None:
    """Also behind a batch that is behind one, and where the script has to be sent."""
    server = Silence(knows_scripts=knows_scripts)
    log = new_log(server)
    fires = []
    for number in range(6):
        fires.append(asyncio.create_task(fired_after(log, f"key:{number}")))
        await asyncio.sleep(TIMEOUT_S * 0.75)
    assert await asyncio.gather(*fires) == [pytest.approx(TIMEOUT_S)] * 6
    await log.drain()


async def test_many_fires_set_few_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all of them, and one for each round trip, of up to 500."""
    loop = asyncio.get_running_loop()
    set_timer, timers = loop.call_at, []

    def call_at(when: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return set_timer(when, *args, **options)

    monkeypatch.setattr(loop, "call_at", call_at)
    log = new_log(Replies(knows_scripts=True))
    for _ in range(3):
        requests = [AppendRequest([(EntryType.FIRED, "key", b"1")]) for _ in range(1_000)]
        assert len(await asyncio.gather(*map(log.append, requests))) == 1_000
    assert len(timers) <= 3 * 3 + 1
    await log.drain()


async def test_a_fire_after_others_has_its_own_time() -> None:
    """Also if those are still remembered: they were done long ago, or were cancelled."""
    server = Replies(knows_scripts=True)
    log = new_log(server)
    for _ in range(3):
        await log.append(AppendRequest([(EntryType.FIRED, "key", b"1")]))
        await asyncio.sleep(TIMEOUT_S * 0.4)
    server.is_silent = True
    leaving = [asyncio.create_task(fired_after(log, "leaves")) for _ in range(2)]
    await asyncio.sleep(TIMEOUT_S * 0.3)
    for task in leaving:
        task.cancel()
    await asyncio.sleep(TIMEOUT_S * 0.3)
    assert await fired_after(log, "key") == pytest.approx(TIMEOUT_S)
    await log.drain()
