"""Delayed jobs over HTTP, on real sockets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import Limits, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, AccessesDep, BearerTokens, create_health_router, install
from purgatory.jobs import JobContext, JobLimits, MemoryJobStore, StoreUnavailableError
from purgatory.jobs.callbacks import CALLBACK
from purgatory.jobs.callbacks.webhook import Webhook
from purgatory.jobs.model import Add, Fire, Step, StoreReadOnlyError
from purgatory.jobs.model.steps import Result
from purgatory.timer import SystemClock
from tests.acceptance.callback_receiver import receiving
from tests.acceptance.client import Connection, Reply
from tests.acceptance.thread_server import KINDS, ServerKind, ThreadServer, serve
from tests.bad_input.refusals import check_refusal
from tests.patience import PATIENCE_S

JOBS = "/purgatory/jobs"


class Store(MemoryJobStore):
    """Jobs in memory, which can be made to fail."""

    error: Exception | None = None
    lost_answer: Exception | None = None
    together: asyncio.Barrier | None = None

    async def run(self, steps: Sequence[Step[Result]]) -> list[Result]:
        if self.together is not None and isinstance(steps[0], Fire):
            await self.together.wait()
        results = await super().run(steps)
        if self.lost_answer is not None and isinstance(steps[0], Add):
            error, self.lost_answer = self.lost_answer, None
            raise error
        return results

    def _begin(self) -> int:
        if self.error is not None:
            raise self.error
        return super()._begin()


def create_app(purgatory: Purgatory, **options: Any) -> FastAPI:
    """An application with two handlers, and callbacks."""
    app = FastAPI()
    app.include_router(create_health_router(purgatory))
    install(app, purgatory, **{"authorize": ALLOW_ANYONE, **options})

    @purgatory.handler("note", http=True)
    async def note(job: JobContext, payload: Any) -> None:
        await purgatory.fire("noted", [job.id, payload])

    @purgatory.handler("count", http=True)
    async def count(job: JobContext, payload: int) -> None:
        """Take a number."""

    purgatory.handler(CALLBACK, http=True)(Webhook(allow_private=True))
    return app


@pytest.fixture
def store() -> Store:
    return Store(limits=JobLimits(max_waiting=50_000))


@pytest.fixture
def purgatory(store: Store) -> Purgatory:
    return Purgatory(jobs=store)


@pytest.fixture
def server(purgatory: Purgatory, kind: ServerKind) -> Iterator[ThreadServer]:
    with serve(create_app(purgatory), purgatory, kind) as running:
        yield running


@pytest.fixture(params=[KINDS[0], KINDS[2]], ids=str)
def kind(request: pytest.FixtureRequest) -> ServerKind:
    found: ServerKind = request.param
    return found


@pytest.fixture
async def connection(server: ThreadServer) -> AsyncIterator[Connection]:
    async with await Connection.open(server.address) as opened:
        yield opened


async def add(connection: Connection, **fields: Any) -> Reply:
    """Add a job called "note" that is due in 100 s, unless `fields` say otherwise."""
    body = {"handler": "note", **fields}
    if "at" not in body:
        body.setdefault("delay", 100)
    return await connection.request("POST", JOBS, body)


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


async def test_a_wait_for_a_job_ends(connection: Connection, server: ThreadServer) -> None:
    """304 when the time is up, and nothing is left when the client goes."""
    address = (await add(connection)).headers["location"]
    headers = {"If-None-Match": '"1"', "Prefer": "wait=0.2"}
    expired = await connection.request("GET", address, headers=headers)
    assert (expired.status, expired.headers["etag"]) == (304, '"1"')
    assert (await connection.get(address)).status == 200
    headers["Prefer"] = "wait=50"
    async with await Connection.open(server.address) as leaving:
        leaving.send("GET", address, headers=headers)
        await server.until_parked(1)
    await server.until_parked(0)


async def test_a_drain_answers_who_waits_for_a_job(kind: ServerKind) -> None:
    """At once, with Retry-After: another process has the job."""
    purgatory = Purgatory(jobs=MemoryJobStore())
    server = ThreadServer(create_app(purgatory), purgatory, kind)
    server.start()
    try:
        async with await Connection.open(server.address) as connection:
            address = (await add(connection)).headers["location"]
            headers = {"If-None-Match": '"1"', "Prefer": "wait=50"}
            connection.send("GET", address, headers=headers)
            await server.until_parked(1)
            await server.call(purgatory.drain)
            drained = await connection.reply()
            assert drained.status == 304
            assert "retry-after" in drained.headers
    finally:
        server.stop()


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


async def until(connection: Connection, address: str, state: str) -> dict[str, Any]:
    """Wait, as a client does, until the job is in that state."""
    etag = '"0"'
    for _ in range(10):
        headers = {"If-None-Match": etag, "Prefer": "wait=50"}
        seen = await connection.request("GET", address, headers=headers)
        job: dict[str, Any] = seen.json()
        if job["state"] == state:
            return job
        etag = seen.headers["etag"]
    raise AssertionError(f"it did not come to be {state}: {job}")


async def test_waits_for_jobs_have_their_bound(kind: ServerKind, store: Store) -> None:
    """That on all that is parked; and the statistics count those that were refused."""
    purgatory = Purgatory(limits=Limits(max_parked=1), jobs=store)
    with serve(create_app(purgatory), purgatory, kind) as server:
        async with await Connection.open(server.address) as parked:
            address = (await add(parked)).headers["location"]
            headers = {"If-None-Match": '"1"', "Prefer": "wait=50"}
            parked.send("GET", address, headers=headers)
            await server.until_parked(1)
            async with await Connection.open(server.address) as other:
                check_refusal(await other.request("GET", address, headers=headers), 503, "full")
                statistics = (await other.get("/purgatory/statistics")).json()
                assert statistics["refused"] == {"max_parked": 1}
                await other.request("DELETE", address)
            assert (await parked.reply()).json()["state"] == "cancelled"


async def test_running_now(connection: Connection) -> None:
    """It does not wait for its deadline, and tells that it was by hand."""
    address = (await add(connection, payload=7)).headers["location"]
    assert (await connection.get(address)).json()["by_hand"] is False
    ran = await connection.request("POST", f"{address}/run")
    assert (ran.status, ran.json()["by_hand"]) == (200, True)
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
    batch = await post_lines(connection, b'{"handler": "note", "delay": 60, "payload": "x"}\n')
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


async def test_a_batch_of_fires_asks_the_store_together(
    store: Store, connection: Connection
) -> None:
    """So that they share its round trip: one after another, none of them would be let through."""
    keys = ["a", "b", "c"]
    assert (await add(connection, keys=keys)).status == 201
    store.together = asyncio.Barrier(len(keys))
    batch = [{"key": key} for key in keys]
    async with asyncio.timeout(PATIENCE_S):
        fired = await connection.request("POST", "/purgatory/keys", batch)
    # The barrier lets them go in any order, and the job is the first one's.
    assert sorted(result.get("jobs", 0) for result in fired.json()["results"]) == [0, 0, 1]


async def test_a_fire_decides_jobs(connection: Connection) -> None:
    """Run or cancel, and the answer says how many."""
    run = (await add(connection, keys=["k"])).headers["location"]
    cancel = (await add(connection, keys=["k"], on_fire="cancel")).headers["location"]
    fired = await connection.request("POST", "/purgatory/keys/k", {"value": {"by": "card"}})
    assert fired.json()["jobs"] == 2
    job = (await connection.get(cancel)).json()
    assert (job["state"], job["outcome"], job["fired_key"]) == ("cancelled", "fired", "k")
    assert job["fired_value"] == {"by": "card"}
    assert (await until(connection, run, "done"))["outcome"] == "fired"
    assert "jobs" not in (await connection.request("POST", "/purgatory/keys/k")).json()


async def test_dedupe_keys(connection: Connection) -> None:
    """409 with the address of the one that waits; 200 where it is replaced or kept."""
    first = await add(connection, payload=1, dedupe_key="d")
    refused = await add(connection, payload=2, dedupe_key="d")
    document = check_refusal(refused, 409, "duplicate-job", "'d'")
    assert document["job"] == refused.headers["location"] == first.headers["location"]
    for on_conflict, payload in (("keep", 1), ("replace", 3)):
        reply = await add(connection, payload=3, dedupe_key="d", on_conflict=on_conflict)
        assert (reply.status, reply.json()["payload"]) == (200, payload)
        assert reply.headers["location"] == first.headers["location"]


async def test_an_idempotency_key(connection: Connection, server: ThreadServer) -> None:
    """The repeat gets the first answer, and adds nothing."""
    headers = {"Idempotency-Key": "once"}
    body = {"handler": "note", "delay": 100}
    first = await connection.request("POST", JOBS, body, headers)
    again = await connection.request("POST", JOBS, body, headers)
    assert (first.status, first.body) == (again.status, again.body)
    assert (await server.call(server.purgatory.job_counts)).waiting == 1
    other = await connection.request("POST", JOBS, body | {"delay": 1}, headers)
    check_refusal(other, 422, "idempotency-conflict")


async def test_a_repeat_after_an_answer_that_was_lost(
    connection: Connection, store: Store, server: ThreadServer
) -> None:
    """The job that was stored all the same is the one that the repeat is told of."""
    headers = {"Idempotency-Key": "once"}
    body = {"handler": "note", "delay": 100}
    store.lost_answer = StoreUnavailableError("the server hung up")
    lost = await connection.request("POST", JOBS, body, headers)
    check_refusal(lost, 503, "store-unavailable")
    again = await connection.request("POST", JOBS, body, headers)
    assert again.status == 201 and again.headers["location"].endswith(again.json()["id"])
    assert (await server.call(server.purgatory.job_counts)).waiting == 1
    # Without a key nobody can know.
    store.lost_answer = StoreUnavailableError("the server hung up")
    assert (await connection.request("POST", JOBS, body)).status == 503
    assert (await connection.request("POST", JOBS, body)).status == 201
    assert (await server.call(server.purgatory.job_counts)).waiting == 3


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


async def post_lines(connection: Connection, body: bytes) -> Reply:
    head = f"POST {JOBS}:batch HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.write(head.encode() + body)
    return await connection.reply()


async def test_a_batch(connection: Connection, server: ThreadServer) -> None:
    """Each line by itself, in order, 10,000 of them."""
    good = json.dumps({"handler": "note", "delay": 1000, "keys": ["k"]}).encode()
    lines = [good] * 10_000
    bad = {
        3: (b"{", 400, "bad-json"),
        4: (b"", 400, "bad-json"),
        5: (b'{"handler": "nope", "delay": 1}', 422, "unknown-handler"),
        6: (b'{"handler": "count", "payload": "x", "delay": 1}', 422, "bad-parameter"),
        7: (b'{"handler": "note", "delay": 1, "keys": ["\\u0000"]}', 422, "bad-parameter"),
        8: (b"\xff", 400, "bad-json"),
        9: (b'{"handler": "note", "delay": -1}', 422, "bad-parameter"),
        10: (b'{"handler": "note", "delay": NaN}', 422, "bad-parameter"),
    }
    for number, (line, _, _) in bad.items():
        lines[number - 1] = line
    lines[11] = b'{"handler": "note", "delay": 1000, "dedupe_key": "d"}'
    lines[12] = lines[11]
    reply = await post_lines(connection, b"\r\n".join(lines) + b"\n")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/jsonl"
    results = [json.loads(line) for line in reply.body.splitlines()]
    assert [result["line"] for result in results] == list(range(1, 10_001))
    for number, (_, status, slug) in bad.items():
        result = results[number - 1]
        assert result["status"] == status, result
        assert result["problem"]["type"].endswith(slug), result
    assert results[12]["status"] == 409
    assert results[12]["problem"]["job"] == f"{JOBS}/{results[11]['id']}"
    ids = {result["id"] for result in results if result["status"] == 201}
    assert len(ids) == 10_000 - len(bad) - 1
    assert (await server.call(server.purgatory.job_counts)).waiting == len(ids)


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
        await connection.request("POST", "/purgatory/keys/k"),
    ):
        refused = check_refusal(reply, 503, "store-unavailable", "store")
        assert str(error) not in str(refused)
        assert reply.headers["retry-after"]
    batch = await post_lines(connection, line + b"\n" + line)
    assert [json.loads(result)["status"] for result in batch.body.splitlines()] == [503, 503]
    statistics = (await connection.get("/purgatory/statistics")).json()["jobs"]
    assert statistics["states"] is None
    ready = await connection.get("/readyz")
    service = server.purgatory._job_service
    assert service is not None
    while ready.status == 200:
        # Until the worker has noticed, too: it asks when it is woken, or some seconds later.
        server.loop.call_soon_threadsafe(service._scheduler._listener.wake)
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


async def test_callbacks_over_http(connection: Connection) -> None:
    """The receiver is called; the values of headers are not shown."""
    with receiving() as receiver:
        callback = {"url": f"{receiver.url}/hook", "headers": {"Authorization": "Bearer secret"}}
        body = {"callback": callback, "payload": [1], "delay": 0}
        added = await connection.request("POST", JOBS, body)
        assert added.status == 201
        job = await until(connection, added.headers["location"], "done")
        assert job["handler"] == CALLBACK
        [listed] = (await connection.get(f"{JOBS}?handler={CALLBACK}")).json()["jobs"]
        assert (listed["id"], listed["handler"]) == (job["id"], CALLBACK)
        assert job["callback"] == {
            "url": callback["url"], "method": "POST", "headers": ["Authorization"],
        }  # fmt: skip
        assert job["payload"] == [1]
        received = receiver.next()
        assert received.headers["authorization"] == "Bearer secret"
        assert json.loads(received.body)["payload"] == [1]


async def test_who_may_do_what(kind: ServerKind) -> None:
    """`defer` for jobs, `wait` for their keys besides, `operate` for lists."""
    tokens = BearerTokens(
        [
            ("deferring-token-1", "defer wait:orders:*"),
            ("operating-token-1", "operate"),
        ]
    )
    purgatory = Purgatory(jobs=MemoryJobStore())
    defer = {"Authorization": "Bearer deferring-token-1"}
    operate = {"Authorization": "Bearer operating-token-1"}
    body = {"handler": "note", "delay": 100, "keys": ["orders:1"]}
    with serve(create_app(purgatory, authorize=tokens), purgatory, kind) as server:
        async with await Connection.open(server.address) as connection:

            async def status(method: str, target: str, headers: Any, body: Any = None) -> int:
                return (await connection.request(method, target, body, headers)).status

            assert await status("POST", JOBS, {}, body) == 401
            assert await status("POST", JOBS, operate, body) == 403
            assert await status("POST", JOBS, defer, body | {"keys": ["users:1"]}) == 403
            added = await connection.request("POST", JOBS, body, defer)
            assert added.status == 201
            address = added.headers["location"]
            for method, target, fields in (
                ("GET", address, None),
                ("PATCH", address, {"delay": 1000}),
                ("DELETE", address, None),
            ):
                assert await status(method, target, {}, fields) == 401
                assert await status(method, target, operate, fields) == 403
                assert await status(method, target, defer, fields) == 200
            assert await status("POST", f"{address}/run", operate) == 403
            assert await status("GET", JOBS, defer) == 403
            assert await status("GET", JOBS, operate) == 200
            assert await status("POST", f"{JOBS}:batch", operate, body) == 403
            assert await status("POST", f"{JOBS}:batch", {}, body) == 401
            batch = await connection.request("POST", f"{JOBS}:batch", body | {"keys": ["x"]}, defer)
            assert batch.json()["status"] == 403


async def test_a_purgatory_without_jobs_has_no_such_addresses(kind: ServerKind) -> None:
    """404, as for anything that is not there."""
    purgatory = Purgatory()
    app = FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)
    with serve(app, purgatory, kind) as server:
        async with await Connection.open(server.address) as connection:
            assert (await connection.get(JOBS)).status == 404


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
