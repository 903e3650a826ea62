"""An application with delayed jobs, and requests that its tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, create_health_router, install
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.jobs.callbacks import CALLBACK
from purgatory.jobs.callbacks.webhook import Webhook
from purgatory.jobs.model.steps import Add, Fire, Result, Step
from tests.acceptance.client import Connection, Reply

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


async def add(connection: Connection, **fields: Any) -> Reply:
    """Add a job called "note" that is due in 100 s, unless `fields` say otherwise."""
    body = {"handler": "note", **fields}
    if "at" not in body:
        body.setdefault("delay", 100)
    return await connection.request("POST", JOBS, body)


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


async def post_lines(connection: Connection, body: bytes, header: str = "") -> Reply:
    head = f"POST {JOBS}:batch HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n"
    connection.write(f"{head}{header}\r\n".encode() + body)
    return await connection.reply()
