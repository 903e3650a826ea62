"""Metrics of several workers, of which one is drained and one is killed, beside a ledger."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from purgatory.metrics.collector import PUBLISH_S
from tests.acceptance.client import ClosedByServer, Connection, Crowd, ask
from tests.acceptance.process_server import ProcessServer, serve_workers
from tests.patience import until

WORKERS = 2
CLIENTS = 20
OUTCOMES = ("fired", "expired", "drained", "cancelled")

_COUNTED = ("purgatory_wait", "purgatory_fires")

Series = tuple[str, frozenset[tuple[str, str]]]


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


async def reason(member: Connection) -> str:
    """Return how a wait ended, or that nobody has said it."""
    try:
        return str((await member.reply()).json()["reason"])
    except (OSError, ClosedByServer):
        return "unknown"


async def fire(server: ProcessServer) -> None:
    """Fire in a worker that takes it: another one may be ending."""
    while True:
        try:
            if (await ask(server.address, "POST", "/purgatory/keys/k")).status == 201:
                return
        except (OSError, ClosedByServer):
            continue


async def test_workers_that_end_leave_their_counts(service: ProcessServer) -> None:
    """Exactly what clients know of, but what a killed one had yet to write; none decreases."""
    ends: Counter[str] = Counter()
    for number, with_signal in enumerate((signal.SIGTERM, signal.SIGKILL), 1):
        async with Crowd(service.address, 2 * CLIENTS) as members:
            for place, member in enumerate(members):
                member.send("GET", f"/purgatory/watch/k?wait={50 if place < CLIENTS else 0.1}")
            ends.update([await reason(member) for member in members[CLIENTS:]])
            before = await settled(service)
            known = len(service.workers())
            # The first of those that live.
            os.kill(service.workers()[number - 1], with_signal)
            await until(lambda known=known: len(service.workers()) > known)  # type: ignore[misc] # mypy knows no such lambda
            await fire(service)
            ends.update([await reason(member) for member in members[:CLIENTS]])
        assert ends["expired"] == number * CLIENTS
        assert (ends["unknown"] > 0) <= (with_signal is signal.SIGKILL)
        found = await settled(service)
        assert not {series for series in before if found.get(series, -1) < before[series]}
        for outcome in OUTCOMES:
            assert total(found, "purgatory_waits_total", outcome=outcome) == ends[outcome]
            waits = total(found, "purgatory_wait_seconds_count", kind="watch", outcome=outcome)
            assert waits == ends[outcome]
        assert total(found, "purgatory_fires_total") == number
    # A worker that starts while another one drains has a place of its own.
    workers = {dict(labels)["worker"] for name, labels in found if "worker" in dict(labels)}
    assert workers <= {str(number) for number in range(WORKERS + 1)}
