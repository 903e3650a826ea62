"""Metrics of several workers, scraped while they are loaded and killed, beside a ledger."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from purgatory.metrics.collector import PUBLISH_S
from tests.acceptance.client import ClosedByServer, Connection, ask
from tests.acceptance.process_server import ProcessServer, serve_workers
from tests.nightly import by_night
from tests.patience import PATIENCE_S, until

SCRAPES = by_night(400, 9)
WORKERS = by_night(3, 2)
CLIENTS = 20
KEYS = 10
KILL_EVERY = by_night(10, 6)
# A snapshot is written once a second; what a busy machine adds.
LOST_S = 3.0

_COUNTED = ("purgatory_wait", "purgatory_fires")

Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass
class Ledger:
    """What clients know to have happened, and when."""

    ends: list[tuple[str, float]] = field(default_factory=list)
    fires: list[float] = field(default_factory=list)
    unknown: int = 0
    """Waits and fires whose connection was closed: they have happened or not."""
    is_over: bool = False

    def outcomes(self) -> Counter[str]:
        """Return how many waits ended, by outcome."""
        return Counter(outcome for outcome, _ in self.ends)

    def near(self, kills: list[float]) -> int:
        """Return how much has happened shortly before a kill."""
        times = [*self.fires, *(at for _, at in self.ends)]
        return sum(any(-0.5 < kill - at < LOST_S for kill in kills) for at in times)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ProcessServer]:
    """`python -m app` with several workers and metrics."""
    variables = {"PURGATORY_METRICS": "true", "PURGATORY_ACCESS_LOG": "false"}
    with serve_workers(WORKERS, tmp_path, **variables) as server:
        yield server


async def scrape(server: ProcessServer) -> dict[Series, float]:
    """Return all series, from whichever worker takes the connection."""
    while True:
        try:
            reply = await ask(server.address, "GET", "/purgatory/metrics")
        except (OSError, ClosedByServer):
            continue
        # 503: it is shutting down.
        if reply.status == 200:
            break
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
        if family.type in ("counter", "histogram")
    }


def total(found: dict[Series, float], name: str, **labels: str) -> int:
    """Return the sum over all workers."""
    wanted = set(labels.items())
    return int(sum(value for (each, has), value in found.items() if each == name and wanted <= has))


async def wait_in_turns(server: ProcessServer, ledger: Ledger, dice: random.Random) -> None:
    """Wait for keys until the storm is over, on new connections after a kill."""
    while not ledger.is_over:
        try:
            async with await Connection.open(server.address) as connection:
                while not ledger.is_over:
                    key, wait = dice.randrange(KEYS), dice.choice(["0.05", "0.2", "0.5"])
                    reply = await connection.get(f"/purgatory/watch/k{key}?wait={wait}")
                    if reply.status == 200:
                        ledger.ends.append((reply.json()["reason"], time.monotonic()))
                    if reply.headers.get("connection") == "close":
                        break
        except (OSError, ClosedByServer):
            ledger.unknown += 1


async def fire_in_turns(server: ProcessServer, ledger: Ledger, dice: random.Random) -> None:
    """Fire keys until the storm is over."""
    while not ledger.is_over:
        try:
            key = dice.randrange(KEYS)
            reply = await ask(server.address, "POST", f"/purgatory/keys/k{key}", None)
            if reply.status == 201:
                ledger.fires.append(time.monotonic())
            elif reply.status != 503:
                raise AssertionError(reply)
        except (OSError, ClosedByServer):
            ledger.unknown += 1
        await asyncio.sleep(dice.uniform(0, 0.05))


async def storm(
    server: ProcessServer,
    ledger: Ledger,
    with_signal: int,
    dice: random.Random,
    outcomes: frozenset[str] = frozenset(),
) -> list[float]:
    """Scrape under load, and end a worker now and then; return when. No counter may decrease.

    It goes on until clients have seen all `outcomes`: those of a slow machine may wait for no key
    at all as a worker drains.
    """
    clients = [wait_in_turns(server, ledger, dice) for _ in range(CLIENTS)]
    firing = [fire_in_turns(server, ledger, dice) for _ in range(2)]
    load = [asyncio.ensure_future(each) for each in (*clients, *firing)]
    alive, kills = server.workers()[-WORKERS:], []
    last: dict[Series, float] = {}
    for number in count(1):
        if number > SCRAPES and outcomes <= ledger.outcomes().keys():
            break
        assert number <= 20 * SCRAPES, ledger.outcomes()
        found = await scrape(server)
        lower = {series for series in last if found.get(series, -1) < last[series]}
        assert not lower, f"scrape {number}: {sorted(map(str, lower))[:3]}"
        last = found
        if number % KILL_EVERY == 0:
            known = len(server.workers())
            os.kill(alive.pop(0), with_signal)
            kills.append(time.monotonic())
            await until(lambda known=known: len(server.workers()) > known)  # type: ignore[misc] # mypy knows no such lambda
            alive.append(server.workers()[-1])
    ledger.is_over = True
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*load)
    return kills


async def settled(server: ProcessServer) -> dict[Series, float]:
    """Return what all workers say once each has written its last counts."""
    before: dict[Series, float] = {}
    for _ in range(30):
        found = await scrape(server)
        # The timer, and what follows the logs of signals, go on.
        now = {each: value for each, value in found.items() if each[0].startswith(_COUNTED)}
        if now == before:
            return found
        before = now
        await asyncio.sleep(2 * PUBLISH_S)
    raise AssertionError("the counts go on")


async def test_workers_leave_their_counts(service: ProcessServer) -> None:
    """Drained ones exactly what clients know of; killed ones lose a second at most."""
    ledger = Ledger()
    seen = frozenset(("drained", "fired", "expired"))
    await storm(service, ledger, signal.SIGTERM, random.Random(1), seen)
    found = await settled(service)
    outcomes = ledger.outcomes()
    for outcome in ("fired", "expired", "drained", "cancelled"):
        assert total(found, "purgatory_waits_total", outcome=outcome) == outcomes[outcome]
        waits = total(found, "purgatory_wait_seconds_count", kind="watch", outcome=outcome)
        assert waits == outcomes[outcome]
    assert total(found, "purgatory_fires_total") == len(ledger.fires)
    workers = {dict(labels)["worker"] for name, labels in found if "worker" in dict(labels)}
    # A worker that starts while another one drains has a place of its own.
    assert workers <= {str(number) for number in range(WORKERS + 1)}

    # Nor is anything counted that has not happened.
    ledger.is_over = False
    kills = await storm(service, ledger, signal.SIGKILL, random.Random(2))
    found = await settled(service)
    lost = ledger.near(kills)
    known = sum(ledger.outcomes().values())
    counted = sum(
        total(found, "purgatory_waits_total", outcome=outcome)
        for outcome in ("fired", "expired", "drained", "cancelled")
    )
    assert known - lost <= counted <= known + ledger.unknown
    fires = total(found, "purgatory_fires_total")
    assert len(ledger.fires) - lost <= fires <= len(ledger.fires) + ledger.unknown
    # The bound is worth something.
    assert lost < known or SCRAPES < 1000
