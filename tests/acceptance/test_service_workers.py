"""The service in several processes, which share signals through a real Valkey."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest

from tests.acceptance.client import Connection, replies
from tests.acceptance.process_server import ProcessServer, serve_workers
from tests.nightly import by_night

WORKERS = by_night(4, 2)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessServer]:
    """`python -m app` with several workers, and jobs in one SQLite file, until one drains it."""
    with serve_workers(
        WORKERS, tmp_path_factory.mktemp("service"), PURGATORY_MAX_PARKD="1"
    ) as server:
        yield server


@contextmanager
def alone(worker: int, workers: list[int]) -> Iterator[None]:
    """Suspend all workers but one, so that it takes every connection."""
    others = [each for each in workers if each != worker]
    try:
        for other in others:
            os.kill(other, signal.SIGSTOP)
        yield
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)


async def connect_to_each(stack: AsyncExitStack, server: ProcessServer) -> list[Connection]:
    """Return a connection to each worker."""
    workers = server.workers()
    connections = []
    for worker in workers:
        with alone(worker, workers):
            connection = await stack.enter_async_context(await Connection.open(server.address))
            # It is accepted by the worker once there is a response.
            assert (await connection.get("/healthz")).status == 200
        connections.append(connection)
    return connections


async def test_jobs_are_shared_in_the_sqlite_file(service: ProcessServer) -> None:
    """What was added in one worker is read, and cancelled, in all others."""
    async with AsyncExitStack() as stack:
        workers = await connect_to_each(stack, service)
        body = {"callback": {"url": "https://shop.example/hook"}, "delay": 900}
        places = []
        for connection in workers:
            added = await connection.request("POST", "/purgatory/jobs", body)
            assert added.status == 201
            places.append(added.headers["location"])
        for place, other in zip(places, workers[::-1], strict=True):
            for connection in workers:
                assert (await connection.get(place)).json()["state"] == "waiting"
            assert (await other.request("DELETE", place)).status == 200
            for connection in workers:
                assert (await connection.get(place)).json()["state"] == "cancelled"


async def test_a_fire_in_any_worker_wakes_the_waits_of_all(service: ProcessServer) -> None:
    """And one of them drains on SIGTERM as all others: 200, and exit status 0."""
    async with AsyncExitStack() as stack:
        firing = await connect_to_each(stack, service)
        parked = await connect_to_each(stack, service)
        cursor = (await firing[0].get("/purgatory/keys/k")).json()["cursor"]
        for number, connection in enumerate(firing):
            for member in parked:
                member.send("GET", f"/purgatory/watch/k?wait=50&cursor={cursor}")
            fired = await connection.request("POST", "/purgatory/keys/k", {"value": number})
            assert fired.status == 201
            cursor = fired.json()["cursor"]
            for answer in await replies(parked):
                document = answer.json()
                assert [each["value"] for each in document["signals"]] == [number]
                assert document["cursor"] == cursor
        for member, probe in zip(parked, firing, strict=True):
            member.send("GET", f"/purgatory/watch/k?wait=50&cursor={cursor}")
            for _ in itertools.count():
                if (await probe.get("/purgatory/statistics")).json()["parked"] == 1:
                    break
        service.terminate()
        for answer in await replies(parked):
            assert (answer.status, answer.json()["reason"]) == (200, "drained")
        await asyncio.to_thread(service.wait)
    assert service.process.returncode == 0
    log = "".join(service.log)
    assert "Traceback" not in log and "ERROR" not in log, log
    assert log.count("Purgatory on http://") == log.count("PURGATORY_MAX_PARKD is not") == 1


@pytest.mark.parametrize(
    ("variables", "way_out"),
    [
        ({}, f"make run WORKERS={WORKERS} PURGATORY_SIGNALS=redis://localhost:6379"),
        (
            {"PURGATORY_SIGNALS": "redis://localhost", "PURGATORY_JOBS_URL": "memory://"},
            "unset PURGATORY_JOBS_URL",
        ),
        ({"WORKERS": "0"}, "WORKERS is '0'"),
    ],
)
def test_workers_without_shared_state_are_refused(
    start_refused: Callable[[dict[str, str]], str], variables: dict[str, str], way_out: str
) -> None:
    """In one sentence, with the line that fixes it."""
    said = start_refused({"WORKERS": str(WORKERS), **variables})
    assert way_out in said
    assert said.count("\n") == 1
