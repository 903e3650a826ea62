"""What operators do with jobs over HTTP: retry, pause, list; and who may."""

from __future__ import annotations

import asyncio
import json

import pytest

from purgatory import Purgatory
from purgatory.fastapi import AccessesDep
from purgatory.jobs import FailJobError, JobContext, MemoryJobStore
from tests.acceptance.client import Connection
from tests.acceptance.jobs.application import JOBS, add, create_app, post_lines
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve
from tests.bad_input.refusals import check_refusal
from tests.patience import PATIENCE_S


async def test_retrying_what_failed(connection: Connection, server: ThreadServer) -> None:
    """One, or all that match, a batch at a time; failed jobs are listed with their errors."""

    async def fail(job: JobContext) -> None:
        raise FailJobError("no use")

    async def register() -> None:
        server.purgatory.handler("fail", http=True)(fail)

    await server.call(register)
    ids = []
    for _ in range(3):
        job = (await add(connection, handler="fail", delay=0, max_attempts=1)).json()
        ids.append(job["id"])
        path = f"{JOBS}/{job['id']}"
        while job["state"] != "failed":
            headers = {"If-None-Match": f'"{job["version"]}"', "Prefer": f"wait={PATIENCE_S}"}
            job = (await connection.request("GET", path, headers=headers)).json()
    listed = (await connection.request("GET", f"{JOBS}?state=failed")).json()["jobs"]
    assert {job["id"] for job in listed} == set(ids)
    assert {job["error"] for job in listed} == {"FailJobError: no use"}
    retried = (await connection.request("POST", f"{path}/retry")).json()
    assert (retried["state"], retried["attempt"], retried["finished"]) == ("waiting", 0, None)
    check_refusal(
        await connection.request("POST", f"{path}/retry", headers={"If-Match": '"1"'}),
        412,
        "job-changed",
    )
    address: str | None = f"{JOBS}:retry?handler=fail&all=true&limit=1"
    count = 0
    while address is not None:
        document = (await connection.request("POST", address)).json()
        address, count = document["next"], count + document["retried"]
    assert count >= 2
    done = (await add(connection, delay=0)).json()
    while done["state"] != "done":
        done = (await connection.request("GET", f"{JOBS}/{done['id']}")).json()
    reply = await connection.request("POST", f"{JOBS}/{done['id']}/retry")
    check_refusal(reply, 409, "job-decided")


@pytest.mark.parametrize("action", ["pause", "resume", "retry"])
async def test_acting_on_all_is_said_in_the_query(connection: Connection, action: str) -> None:
    """A body is refused, and nothing at all does not mean everything."""
    address = f"{JOBS}:{action}"
    body = {"handler": "note"}
    for query in ("", "?handler=note", "?all=true"):
        refused = await connection.request("POST", address + query, body)
        detail = check_refusal(refused, 422, "bad-parameter")["detail"]
        assert "?handler=NAME" in detail and "?all=true" in detail
    wrong = ["", "?all=false", "?all=yes", "?all="]
    if action == "retry":
        wrong.append("?limit=3")
    else:
        wrong.append("?handler=note&all=true")
    for query in wrong:
        check_refusal(await connection.request("POST", address + query), 422, "bad-parameter")
    paused = (await connection.request("GET", f"{JOBS}:paused")).json()
    assert paused == {"handlers": [], "all": False, "jobs": 0, "unknown": []}


async def test_a_paused_name_that_nobody_knows(connection: Connection) -> None:
    """It may be of another service on the store: paused, and named as unknown."""
    paused = (await connection.request("POST", f"{JOBS}:pause?handler=flakey")).json()
    assert (paused["handlers"], paused["unknown"]) == (["flakey"], ["flakey"])
    resumed = (await connection.request("POST", f"{JOBS}:resume?handler=flakey")).json()
    assert (resumed["handlers"], resumed["unknown"]) == ([], [])


async def test_pausing(connection: Connection) -> None:
    """A handler, or all; what is due waits."""
    paused = (await connection.request("POST", f"{JOBS}:pause?handler=note")).json()
    assert paused == {"handlers": ["note"], "all": False, "jobs": 0, "unknown": []}
    job = (await add(connection, delay=0)).json()
    address = f"{JOBS}:paused"
    async with asyncio.timeout(PATIENCE_S):
        ran = await connection.request("POST", f"{JOBS}/{job['id']}/run")
        assert (ran.status, ran.json()["state"], ran.json()["paused"]) == (200, "waiting", True)
        while (await connection.request("GET", address)).json()["jobs"] == 0:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.01)
    everything = (await connection.request("POST", f"{JOBS}:pause?all=true")).json()
    assert everything == {"handlers": ["note"], "all": True, "jobs": 1, "unknown": []}
    resumed = (await connection.request("POST", f"{JOBS}:resume?handler=note")).json()
    assert resumed == {"handlers": [], "all": True, "jobs": 1, "unknown": []}
    resumed = (await connection.request("POST", f"{JOBS}:resume?all=true")).json()
    assert resumed == {"handlers": [], "all": False, "jobs": 0, "unknown": []}
    while job["state"] != "done":
        headers = {"If-None-Match": f'"{job["version"]}"', "Prefer": f"wait={PATIENCE_S}"}
        path = f"{JOBS}/{job['id']}"
        reply = await connection.request("GET", path, headers=headers)
        assert reply.status == 200
        job = reply.json()


async def test_listing(connection: Connection) -> None:
    """Pages by `next`, filters, and no payloads."""
    for number in range(5):
        await add(connection, payload=number, keys=[f"k{number % 2}"])
    await add(connection, handler="count", payload=1)
    found: list[str] = []
    following: str | None = f"{JOBS}?limit=2&handler=note"
    while following is not None:
        page = await connection.get(following)
        found += [job["id"] for job in page.json()["jobs"]]
        following = page.json()["next"]
        if following is not None:
            assert page.headers["link"] == f'<{following}>; rel="next"'
    assert len(found) == len(set(found)) == 5
    some = (await connection.get(f"{JOBS}?key=k1&state=waiting")).json()["jobs"]
    assert len(some) == 2
    assert all("payload" not in job for job in some)
    assert (await connection.get(f"{JOBS}?state=done")).json() == {"jobs": [], "next": None}


async def test_an_authorize_of_one_s_own_is_told(kind: ServerKind) -> None:
    """Of the action, the job, and each key that a job is to wait on; of a batch's too."""
    asked: list[str] = []

    def authorize(accesses: AccessesDep) -> None:
        asked[:] = [f"{access.action}:{access.key}:{access.job}" for access in accesses]

    purgatory = Purgatory(jobs=MemoryJobStore())
    app = create_app(purgatory, authorize=authorize)
    with serve(app, purgatory, kind) as server:
        async with await Connection.open(server.address) as connection:
            added = await add(connection, keys=["a", "b"])
            assert added.status == 201
            assert asked == ["defer:None:None", "wait:a:None", "wait:b:None"]
            job = added.json()["id"]
            for method, target, body in (
                ("GET", "", None),
                ("PATCH", "", {"delay": 50}),
                ("POST", "/run", None),
                ("DELETE", "", None),
            ):
                await connection.request(method, f"{JOBS}/{job}{target}", body)
                assert asked == [f"defer:None:{job}"], (method, target)
            assert (await connection.get(JOBS)).status == 200
            assert asked == ["operate:None:None"]
            line = json.dumps({"handler": "note", "delay": 1_000, "keys": ["c"]}).encode()
            assert (await post_lines(connection, line + b"\nno json\n" + line)).status == 200
            assert asked == ["defer:None:None", "wait:c:None"]
