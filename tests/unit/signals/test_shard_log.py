"""The time that a fire may take, in virtual time: its server does not reply."""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import Any

import pytest

from purgatory import Limits
from purgatory.errors import SignalsUnavailableError
from purgatory.signals.log_entry import EntryType
from purgatory.signals.redis.shard_log import AppendRequest, ShardLog
from purgatory.testing import AutojumpEventLoop

TIMEOUT_S = 2.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": AutojumpEventLoop}


class Silence:
    """A connection, and a client, of a server that does not reply in time."""

    def __init__(self, *, knows_scripts: bool) -> None:
        self.is_open = True
        self.sent: list[bytes] = []
        self._knows_scripts = knows_scripts

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


async def fired_after(log: ShardLog, key: str) -> float:
    """Fire; return the seconds until it was refused."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    with pytest.raises(SignalsUnavailableError, match=r"2 s have passed.*made again"):
        await log.append(AppendRequest([(EntryType.FIRED, key, b"1")]))
    return loop.time() - begun_s


@pytest.mark.parametrize("knows_scripts", [True, False], ids=["silent", "without-the-script"])
async def test_a_fire_behind_one_that_hangs_is_refused_in_its_own_time(
    *, knows_scripts: bool
) -> None:
    """Also behind a batch that is behind one, and where the script has to be sent."""
    server: Any = Silence(knows_scripts=knows_scripts)
    log = ShardLog("{x}:", shards=1, limits=Limits(), timeout_s=TIMEOUT_S, is_fsynced=False)
    log.connect(server, server)
    fires = []
    for number in range(6):
        fires.append(asyncio.create_task(fired_after(log, f"key:{number}")))
        await asyncio.sleep(TIMEOUT_S * 0.75)
    assert await asyncio.gather(*fires) == [pytest.approx(TIMEOUT_S)] * 6
    await log.drain()
