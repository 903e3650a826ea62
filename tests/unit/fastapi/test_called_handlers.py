"""Handlers as the functions of an application: what Starlette and FastAPI call and await."""

from __future__ import annotations

from typing import Any

from fastapi import BackgroundTasks, Depends, FastAPI

from purgatory import Purgatory
from purgatory.jobs import MemoryJobStore
from tests.unit.exchange import Exchange


async def test_a_handler_is_awaited_as_its_function_would_be() -> None:
    """As a background task, and as a dependency."""
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())
    called: list[object] = []

    @purgatory.handler
    async def charge(job: Any) -> None:
        called.append(job)

    @purgatory.handler
    def note(job: Any) -> None:
        called.append(job)

    class Send:
        async def __call__(self, job: Any) -> None:
            called.append(job)

    handlers: list[Any] = [charge, note, purgatory.handler("send")(Send())]

    @app.get("/", dependencies=[Depends(charge)])
    async def root(tasks: BackgroundTasks) -> None:
        for number, handler in enumerate(handlers):
            tasks.add_task(handler, number)

    await Exchange("/", query_string=b"job=dependency").begin(app).reply()
    assert called == ["dependency", 0, 1, 2]
