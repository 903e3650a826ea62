"""Twice as many clients as the bound admits: who is admitted is answered on time, memory stays.

A few seconds of it here, beside other tests; `make load` does the same for a minute and alone, so
that it may ask for more.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from dataclasses import dataclass, field

import pytest

from tests.acceptance.client import Connection, Crowd, ask
from tests.acceptance.process_server import ProcessServer, serve_in_process
from tests.acceptance.thread_server import KINDS, ServerKind
from tests.nightly import by_night

IS_ALONE = "PURGATORY_LOAD_SECONDS" in os.environ
SECONDS = float(os.environ.get("PURGATORY_LOAD_SECONDS", "6"))
BOUND = 400
WAIT = 1.0
# Late by more than this would be a queue that grows.
SLACK = 0.75 if IS_ALONE else 10.0
# What one parked request costs is about 1.5 KB through the protocol of our own, 13 KB without.
MARGIN = 8 * 1024 * 1024


@dataclass
class Tally:
    """What the clients have seen."""

    waited: list[float] = field(default_factory=list)
    refused: int = 0
    other: list[int] = field(default_factory=list)


async def _ask_again_and_again(connection: Connection, until: float, tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    while (begun := loop.time()) < until:
        reply = await connection.get(f"/purgatory/watch/load?wait={WAIT:g}")
        if reply.status == 200:
            tally.waited.append(loop.time() - begun)
        elif reply.status == 503 and 1 <= int(reply.headers["retry-after"]) <= 5:
            tally.refused += 1
            # Sooner than it was told to, so that there are always more than may be parked.
            await asyncio.sleep(random.uniform(0.2, 0.6))
        else:
            tally.other.append(reply.status)


async def _load(server: ProcessServer, seconds: float) -> Tally:
    tally = Tally()
    async with Crowd(server.address, 2 * BOUND) as crowd:
        until = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(_ask_again_and_again(member, until, tally) for member in crowd))
    return tally


# By day on the protocol that the service has.
@pytest.mark.parametrize("kind", by_night([KINDS[0], KINDS[-1]], [KINDS[-1]]), ids=str)
async def test_twice_the_bound_of_clients(kind: ServerKind) -> None:
    """200 after the wait, or 503 at once; nothing else, nobody late, and nothing that grows."""
    app = "tests.acceptance.application:app_with_room_for_a_crowd"
    with serve_in_process(app, kind) as server:
        # What is allocated once is, after this.
        await _load(server, 1.5)
        before = server.resident_bytes()
        tally = await _load(server, SECONDS / 2)
        after = server.resident_bytes()
        statistics = (await ask(server.address, "GET", "/purgatory/statistics")).json()
        assert tally.other == []
        # Each round of waits is as large as the bound allows, or nearly.
        rounds = max(1, math.floor(SECONDS / 2 / (WAIT + SLACK)))
        assert len(tally.waited) >= 0.6 * BOUND * rounds
        assert tally.refused > 0 and statistics["refused"]["max_parked"] >= tally.refused
        assert min(tally.waited) >= WAIT
        assert max(tally.waited) <= WAIT + SLACK
        assert after - before <= MARGIN
        assert (statistics["parked"], statistics["keys"]) == (0, 0)
