"""A server with the things of a victim, and its clients: one for each scope of an attacker."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final, Protocol

import httpx
from fastapi import FastAPI, Header, HTTPException
from pydantic import SecretStr

from app.main import create_app
from app.settings import Settings
from purgatory import Purgatory
from purgatory.fastapi import AccessesDep, create_health_router, install
from purgatory.fastapi.access import Scope
from purgatory.jobs import Job, JobNotFoundError, JobState, JobStore, MemoryJobStore
from purgatory.jobs.model.job import JobCounts, JobFilter, JobPage
from purgatory.jobs.model.steps import (
    Claim,
    Finish,
    GiveBack,
    Miss,
    Prune,
    Renew,
    Result,
    RunNow,
    Start,
    Step,
)
from tests.acceptance.client import Connection, Reply
from tests.acceptance.thread_server import KINDS, serve
from tests.patience import until
from tests.security.permissions import JSON, KEY, OWN_KEY, SCOPES, SECRET, Case, Target, Thing

VICTIM: Final = "token-of-a-victim-who-waits-and-fires"
# Its jobs are those of a prefix, which other tokens of that prefix share.
PARTNER: Final = "token-of-a-victim-that-shares-its-jobs"
_VICTIMS: Final = {VICTIM: "wait:victim:* fire:victim:* defer", PARTNER: "defer:victim-*"}
TOKENS: Final = {scopes: f"token-of-attacker-{n:02d}" for n, scopes in enumerate(SCOPES)}
_SCOPES_OF: Final = _VICTIMS | {token: scopes for scopes, token in TOKENS.items()}
_PARSED: Final = {
    token: tuple(map(Scope.parse, scopes.split())) for token, scopes in _SCOPES_OF.items()
}
# What a worker asks by itself, whatever clients do.
_OF_WORKERS: Final = (Claim, Finish, GiveBack, Miss, Prune, Renew, Start)


class RecordingStore(MemoryJobStore):
    """Notes what requests ask: time, without a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def run(self, steps: Sequence[Step[Result]]) -> list[Result]:
        self.asked += [type(step).__name__ for step in steps if not isinstance(step, _OF_WORKERS)]
        return await super().run(steps)

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        self.asked.append("get")
        return await super().get(job_ids)

    async def query(self, where: JobFilter, *, after: str | None = None, limit: int) -> JobPage:
        self.asked.append("query")
        return await super().query(where, after=after, limit=limit)

    async def counts(self) -> JobCounts:
        self.asked.append("counts")
        return await super().counts()


def create_service(**more: Any) -> FastAPI:
    """Return the service, which asks for the tokens; `more` are settings."""
    store = RecordingStore()

    class RecordingSettings(Settings):
        def job_store(self) -> JobStore:
            return store

    text = ";".join(f"{token} {scopes}" for token, scopes in _SCOPES_OF.items())
    app = create_app(RecordingSettings(tokens=SecretStr(text), job_handlers="note", **more))
    app.state.purgatory.handled_elsewhere(["charge"])
    app.state.store, app.state.has_tokens = store, True
    return app


async def _authorize(
    accesses: AccessesDep, authorization: Annotated[str | None, Header()] = None
) -> str | None:
    if not accesses:
        return None
    token = (authorization or "").removeprefix("Bearer ")
    if token not in _PARSED:
        raise HTTPException(401)
    for access in accesses:
        if not any(scope.allows(access) for scope in _PARSED[token]):
            raise HTTPException(403)
    return token


def create_application() -> FastAPI:
    """Return an application that decides by itself, by the same scopes."""
    app, store = FastAPI(), RecordingStore()
    app.state.store, app.state.has_tokens = store, False
    purgatory = Purgatory(jobs=store)
    purgatory.handled_elsewhere(["note"], http=True)
    purgatory.handled_elsewhere(["charge"])
    install(app, purgatory, authorize=_authorize)
    app.include_router(create_health_router(purgatory))
    return app


class Send(Protocol):
    """Sends one request and returns its response."""

    async def __call__(
        self, method: str, target: str, headers: Mapping[str, str], content: bytes
    ) -> Reply:
        """Wait for the response."""
        ...


Call = Callable[..., Awaitable[Any]]


async def _called(function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    return await function(*args)


def operations(app: FastAPI) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Return the method, the path and the description of each operation of OpenAPI."""
    return {
        operation["operationId"]: (method.upper(), path, operation)
        for path, item in app.openapi()["paths"].items()
        for method, operation in item.items()
    }


class World:
    """The server, what the victim has in it, and what is asked of its store."""

    def __init__(self, app: FastAPI, send: Send, call: Call = _called) -> None:
        self.purgatory: Purgatory = app.state.purgatory
        self.store: RecordingStore = app.state.store
        self.has_tokens: bool = app.state.has_tokens
        self._send = send
        self._call = call
        self.operations = operations(app)
        self._waiting: asyncio.Task[Reply] | None = None

    async def request(
        self,
        case: Case,
        target: Target,
        token: str | None,
        *,
        method: str | None = None,
    ) -> Reply:
        """Send the request of `case` about `target`, or the same with another method."""
        usual, path, _ = self.operations[case.operation]
        method = method or usual
        path = path.format(
            key=case.key,
            id=target.wait if case.operation == "cancel_wait" else target.job,
            slug="full",
            file="dashboard.js",
        )
        headers = dict(case.headers(target))
        content = case.content(target)
        if content:
            headers["Content-Type"] = case.media_type
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self.store.asked.clear()
        return await self._send(method, path + case.query, headers, content)

    async def ask(self, method: str, path: str, token: str, body: bytes, **more: str) -> Reply:
        """Send a request as the victim does; names of headers with underscores."""
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        headers["Authorization"] = f"Bearer {token}"
        if body:
            headers["Content-Type"] = JSON
        return await self._send(method, f"/purgatory{path}", headers, body)

    async def make(self, thing: Thing) -> Target:
        """Give the victim what `thing` says; return its names."""
        target = Target()
        if thing == "handler":
            return Target(handler="charge")
        if thing in ("key", "wait"):
            body = b'{"value":"%b"}' % SECRET.encode()
            named = {"Idempotency_Key": target.idempotency_key}
            assert (await self.ask("POST", f"/keys/{KEY}", VICTIM, body, **named)).status == 201
        if thing == "wait":
            waiting = self.ask("GET", f"/watch/{KEY}?wait=50", VICTIM, b"", Wait_Id=target.wait)
            self._waiting = asyncio.create_task(waiting)
            await until(lambda: self.purgatory.waiting(KEY) == 1)
        if "job" in thing:
            return await self._make_job(thing, target)
        return target

    async def _make_job(self, thing: Thing, target: Target) -> Target:
        job = {
            "handler": "note",
            "delay": 900.0,
            "keys": [] if thing == "shared job" else [KEY],
            "payload": None if thing == "fired job" else SECRET,
            "dedupe_key": target.dedupe_key,
        }
        token = PARTNER if thing == "shared job" else VICTIM
        named = {"Idempotency_Key": target.idempotency_key}
        added = await self.ask("POST", "/jobs", token, json.dumps(job).encode(), **named)
        assert added.status == 201, added.body
        if thing == "fired job":
            body = b'{"value":"%b"}' % SECRET.encode()
            fired = await self.ask("POST", f"/keys/{KEY}", VICTIM, body)
            assert fired.json()["jobs"] == 1
        if thing == "failed job":
            await self._call(self._fail, added.json()["id"])
        return Target(
            job=added.json()["id"],
            idempotency_key=target.idempotency_key,
            dedupe_key=target.dedupe_key,
        )

    async def _fail(self, job_id: str) -> None:
        await self.store.run([RunNow(job_id)])
        [job] = await self.store.get([job_id])
        assert job is not None
        [claimed] = await self.store.run([Claim("w", 0, 100, 60_000, (job.handler,))])
        [claim] = [job.claim for job in claimed.jobs if job.id == job_id]
        await self.store.run([Start(claim, 60_000)])
        await self.store.run([Finish(claim, JobState.FAILED, "broken")])

    async def snapshot(self, target: Target) -> object:
        """Return what the victim has."""
        return await self._call(self._snapshot, target)

    async def _snapshot(self, target: Target) -> object:
        try:
            job = await self.purgatory.job(target.job).get()
        except JobNotFoundError:
            job = None
        signals = self.purgatory.signals
        return job, self.purgatory.waiting(KEY), signals.earliest(KEY), signals.last(KEY)

    async def reset(self) -> None:
        """Remove what is there."""
        await self._call(self.purgatory.cancel, KEY)
        await self.remove_attackers_things()
        if self._waiting is not None:
            await self._waiting
            self._waiting = None

    async def remove_attackers_things(self, target: Target | None = None) -> None:
        """Remove all but what is of `target`."""
        await self._call(self.purgatory.cancel, OWN_KEY)
        for job in (
            await self._call(partial(self.purgatory.jobs.list, state=JobState.WAITING))
        ).jobs:
            if target is None or job.id != target.job:
                await self._call(self.purgatory.jobs.cancel, job.id)


@asynccontextmanager
async def in_process(app: FastAPI) -> AsyncIterator[World]:
    """Serve `app` without a server."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):

        async def send(
            method: str, target: str, headers: Mapping[str, str], content: bytes
        ) -> Reply:
            reply = await client.request(method, target, headers=dict(headers), content=content)
            return Reply(reply.status_code, dict(reply.headers), reply.content, 0.0)

        yield World(app, send)


@asynccontextmanager
async def on_parking_protocol(app: FastAPI) -> AsyncIterator[World]:
    """Serve `app` on a socket, as the service is."""
    with serve(app, app.state.purgatory, KINDS[-1]) as server:

        async def send(
            method: str, target: str, headers: Mapping[str, str], content: bytes
        ) -> Reply:
            length = {"Content-Length": str(len(content))} if content else {}
            lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
            lines += [f"{name}: {value}" for name, value in {**headers, **length}.items()]
            async with await Connection.open(server.address) as connection:
                connection.write("\r\n".join([*lines, "", ""]).encode() + content)
                return await connection.reply(has_body=method != "HEAD")

        yield World(app, send, server.call)


_VARYING: Final = (
    (re.compile(r"[0-9a-f]{32}"), "JOB"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"[0-9a-f]{12}-\d+"), "CURSOR"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r'"seq":\d+'), "SEQ"),
    (re.compile(r"charg[ef]"), "HANDLER"),
)


def is_refused(reply: Reply) -> bool:
    """Return True iff the request, or each line of it, was not allowed."""
    if reply.status == 200 and reply.headers["content-type"] == "application/jsonl":
        return all(b'"status":403' in line for line in reply.body.splitlines())
    return reply.status in (401, 403)


def shape(reply: Reply) -> object:
    """Return all of a response that a client can compare with another; ids are placeholders.

    Of a refusal that is its size too. The position in a cursor is that of all signals.
    """
    headers = {name: value for name, value in reply.headers.items() if name != "date"}
    if not is_refused(reply):
        headers.pop("content-length", None)
    if "retry-after" in headers:
        headers["retry-after"] = "SECONDS"
    text = "\n".join([*(f"{name}: {headers[name]}" for name in sorted(headers)), ""])
    text += reply.body.decode()
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return reply.status, text, len(reply.body) if is_refused(reply) else None
