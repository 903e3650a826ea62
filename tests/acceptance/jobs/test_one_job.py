"""One job over HTTP, on real sockets: from `defer` to its end, and stores that fail."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from purgatory import Purgatory
from purgatory.job_errors import StoreReadOnlyError
from purgatory.jobs import JobLimits, MemoryJobStore, StoreUnavailableError
from purgatory.timer import SystemClock
from tests.acceptance.client import Connection
from tests.acceptance.jobs.application import JOBS, Store, add, create_app, post_lines, until
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve
from tests.bad_input.refusals import check_refusal


async def test_a_job_from_beginning_to_end(connection: Connection) -> None:
    """201 with its address and ETag; it runs, and whoever waits is told of each change."""
    added = await add(connection, payload={"n": 1}, delay=0.3, keys=["a", "b"], dedupe_key="d")
    assert added.status == 201
    job = added.json()
    assert added.headers["location"] == f"{JOBS}/{job['id']}"
    assert added.headers["etag"] == '"1"'
    assert (job["state"], job["outcome"], job["payload"]) == ("waiting", None, {"n": 1})
    assert (job["keys"], job["dedupe_key"], job["max_attempts"]) == (["a", "b"], "d", 10)
    states: list[str] = []
    etag = added.headers["etag"]
    while not states or states[-1] != "done":
        headers = {"If-None-Match": etag, "Prefer": "wait=50"}
        seen = await connection.request("GET", added.headers["location"], headers=headers)
        assert seen.status == 200
        assert seen.headers["preference-applied"] == "wait=50"
        etag = seen.headers["etag"]
        states.append(seen.json()["state"])
    assert states in (["running", "done"], ["done"])
    noted = await connection.get("/purgatory/watch/noted?cursor=0&wait=0")
    assert noted.json()["signals"][0]["value"] == [job["id"], {"n": 1}]
    # A job that is over changes no more: nobody is kept waiting.
    last = await connection.request(
        "GET", added.headers["location"], headers=headers | {"If-None-Match": etag}
    )
    assert (last.status, last.body) == (304, b"")


async def test_moving_a_deadline(connection: Connection) -> None:
    """PATCH, and only if it has not changed since, with If-Match."""
    address = (await add(connection)).headers["location"]
    moved = await connection.request("PATCH", address, {"delay": 200}, {"If-Match": '"1"'})
    assert (moved.status, moved.headers["etag"]) == (200, '"2"')
    for tag in ('"1"', '"other"', '"99"'):
        again = await connection.request("PATCH", address, {"delay": 300}, {"If-Match": tag})
        assert (
            check_refusal(
                again, 412, "job-changed", tag.strip('"') if tag != '"other"' else "other"
            )["etag"]
            == '"2"'
        )
    for tag in ('W/"2"', '"02"', '"1", W/"2"', '"1", "3"'):
        again = await connection.request("PATCH", address, {"delay": 300}, {"If-Match": tag})
        assert check_refusal(again, 412, "job-changed")["etag"] == '"2"'
    for tag in ("2", '"2', '*, "2"', ""):
        again = await connection.request("PATCH", address, {"delay": 300}, {"If-Match": tag})
        check_refusal(again, 422, "bad-parameter", "If-Match")
    for version, tag in ((3, '"1", "2"'), (4, 'W/"1" ,"3"'), (5, "*")):
        moved = await connection.request("PATCH", address, {"delay": version}, {"If-Match": tag})
        assert (moved.status, moved.headers["etag"]) == (200, f'"{version}"')
    at = datetime.fromtimestamp(SystemClock().wall_ms() // 1000 + 500, UTC)
    moved = await connection.request("PATCH", address, {"at": at.isoformat()})
    assert datetime.fromisoformat(moved.json()["deadline"]) == at
    check_refusal(await connection.request("PATCH", address, {}), 422, "bad-parameter", "delay")


async def test_cancelling(connection: Connection) -> None:
    """200 with the job, again and again; 409 once it is done; 404 for none."""
    address = (await add(connection)).headers["location"]
    for tag in ('"7"', '"other"'):
        changed = await connection.request("DELETE", address, headers={"If-Match": tag})
        assert check_refusal(changed, 412, "job-changed", tag.strip('"'))["etag"] == '"1"'
    for _ in range(2):
        cancelled = await connection.request("DELETE", address)
        assert cancelled.status == 200
        assert (cancelled.json()["state"], cancelled.json()["outcome"]) == ("cancelled",) * 2
    for method, target, body in (
        ("PATCH", address, {"delay": 1}),
        ("POST", f"{address}/run", None),
    ):
        refused = check_refusal(
            await connection.request(method, target, body), 409, "job-decided", "cancelled"
        )
        assert (refused["state"], refused["outcome"]) == ("cancelled", "cancelled")
    done = (await add(connection, delay=0)).headers["location"]
    await connection.get("/purgatory/watch/noted?cursor=0&wait=50s")
    await until(connection, done, "done")
    check_refusal(await connection.request("DELETE", done), 409, "job-decided", "done")
    for method, target, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("PATCH", "", {"delay": 1}),
        ("POST", "/run", None),
    ):
        unknown = await connection.request(method, f"{JOBS}/{'0' * 32}{target}", body)
        check_refusal(unknown, 404, "unknown-job", "no job")


async def test_running_now(connection: Connection) -> None:
    """It does not wait for its deadline, and tells that it was by hand."""
    address = (await add(connection, payload=7)).headers["location"]
    assert (await connection.get(address)).json()["by_hand"] is False
    ran = await connection.request("POST", f"{address}/run")
    assert (ran.status, ran.json()["by_hand"], ran.json()["paused"]) == (200, True, False)
    job = await until(connection, address, "done")
    assert (job["outcome"], job["by_hand"]) == ("expired", True)
    for options, decide in (
        ({"delay": 0}, None),
        ({"keys": ["k"]}, ("POST", "/purgatory/keys/k")),
    ):
        other = (await add(connection, **options)).headers["location"]
        if decide is not None:
            await connection.request(*decide)
        assert (await until(connection, other, "done"))["by_hand"] is False


async def test_all_json_is_written_alike(connection: Connection) -> None:
    """Without spaces, and times in UTC to the millisecond, wherever they come from."""
    added = await add(connection, keys=["k"], payload="x", delay=60, ceiling=90)
    await connection.request("POST", "/purgatory/keys/k", {"value": "x"})
    await until(connection, added.headers["location"], "done")
    # Beyond the worker's horizon: no timer of it may be left at the end.
    batch = await post_lines(connection, b'{"handler": "note", "delay": 900, "payload": "x"}\n')
    replies = [
        added,
        batch,
        await connection.get(added.headers["location"]),
        await connection.get(JOBS),
        await connection.get(f"{JOBS}?after=x"),
        await connection.get("/purgatory/watch/k?cursor=0&wait=0"),
        await connection.request("POST", "/purgatory/watch", {"keys": {"k": "0"}, "wait": 0}),
        await connection.get("/purgatory/keys/k"),
        await connection.get("/purgatory/keys"),
        await connection.request("DELETE", "/purgatory/keys/k"),
        await connection.get("/purgatory/statistics"),
        await connection.get("/readyz"),
    ]
    moments: list[str] = []
    for reply in replies:
        for line in reply.body.splitlines():
            document = json.loads(line)
            assert line == json.dumps(document, separators=(",", ":")).encode()
        moments += re.findall(r'"(\d{4}-\d\d-\d\d[^"]*)"', reply.body.decode())
    assert len(moments) >= 2 + 4 * 3
    for moment in moments:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment), moment


async def test_a_repeat_after_an_answer_that_was_lost(
    connection: Connection, store: Store, server: ThreadServer
) -> None:
    """The job that was stored all the same is the one that the repeat, and no other, is told of."""
    headers = {"Idempotency-Key": "once"}
    body = {"handler": "note", "delay": 100}
    store.lost_answer = StoreUnavailableError("the server hung up")
    lost = await connection.request("POST", JOBS, body, headers)
    check_refusal(lost, 503, "store-unavailable")
    # By the job in the store, as no answer was kept.
    other = await connection.request("POST", JOBS, body | {"payload": 2}, headers)
    check_refusal(other, 422, "idempotency-conflict", "use a new key")
    again = await connection.request("POST", JOBS, body, headers)
    assert again.status == 201 and again.headers["location"].endswith(again.json()["id"])
    assert (await server.call(server.purgatory.jobs.counts)).waiting == 1
    # Without a key nobody can know.
    store.lost_answer = StoreUnavailableError("the server hung up")
    assert (await connection.request("POST", JOBS, body)).status == 503
    assert (await connection.request("POST", JOBS, body)).status == 201
    assert (await server.call(server.purgatory.jobs.counts)).waiting == 3


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("it is out of reach"), StoreReadOnlyError("it is read-only")]
)
async def test_a_store_that_fails(
    server: ThreadServer, connection: Connection, store: Store, error: Exception
) -> None:
    """503 with Retry-After; /readyz and the statistics say so; nothing is acknowledged.

    The reason, which may have addresses and names in it, is in the log and the statistics only.
    """
    address = (await add(connection, keys=["k"])).headers["location"]
    store.error = error
    line = json.dumps({"handler": "note", "delay": 1}).encode()
    for reply in (
        await add(connection),
        await connection.get(address),
        await connection.request("DELETE", address),
        await connection.get(JOBS),
    ):
        refused = check_refusal(reply, 503, "store-unavailable", "store")
        assert str(error) not in str(refused)
        assert reply.headers["retry-after"]
    batch = await post_lines(connection, line + b"\n" + line)
    assert [json.loads(result)["status"] for result in batch.body.splitlines()] == [503, 503]
    statistics = (await connection.get("/purgatory/statistics")).json()["jobs"]
    assert statistics["states"] is None
    ready = await connection.get("/readyz")
    service = server.purgatory.jobs
    assert service is not None
    while ready.status == 200:
        # Until the worker has noticed, too: it asks when it is woken, or some seconds later.
        server.loop.call_soon_threadsafe(service._scheduler._claimer.wake)
        ready = await connection.get("/readyz")
    assert "the job store fails" in ready.json()["missing"][0]
    assert str(error) not in str(ready.json())
    statistics = (await connection.get("/purgatory/statistics")).json()["jobs"]
    assert statistics["store_error"] == str(error)
    store.error = None
    while (await connection.get("/readyz")).status == 503:
        pass
    assert (await connection.get("/purgatory/statistics")).json()["jobs"]["states"]["waiting"] == 1


async def test_a_store_that_is_full(kind: ServerKind) -> None:
    """503 `jobs-full`."""
    purgatory = Purgatory(jobs=MemoryJobStore(limits=JobLimits(max_waiting=1)))
    with serve(create_app(purgatory), purgatory, kind) as server:
        async with await Connection.open(server.address) as connection:
            assert (await add(connection)).status == 201
            check_refusal(await add(connection), 503, "jobs-full", "no room")
