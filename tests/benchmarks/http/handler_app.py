"""The endpoint that people write: an event for each key, and `asyncio.wait_for`."""

import asyncio
from collections import Counter

from fastapi import FastAPI

from tests.benchmarks.http.probe import probe


def create_app() -> FastAPI:
    """Return an application with the two addresses that the benchmark asks for."""
    app = FastAPI()
    events: dict[str, asyncio.Event] = {}
    waiting: Counter[str] = Counter()

    @app.get("/purgatory/watch/{key}")
    async def watch(key: str, wait: float = 25.0) -> dict[str, object]:
        event = events.setdefault(key, asyncio.Event())
        waiting[key] += 1
        try:
            await asyncio.wait_for(event.wait(), wait)
        except TimeoutError:
            return {"key": key, "reason": "expired"}
        finally:
            waiting[key] -= 1
        return {"key": key, "reason": "fired"}

    @app.post("/purgatory/keys/{key}", status_code=201)
    async def fire(key: str) -> dict[str, object]:
        event = events.pop(key, None)
        if event is None:
            return {"completed": 0}
        event.set()
        return {"completed": waiting[key]}

    @app.get("/bench")
    async def bench() -> dict[str, int]:
        return probe(waiting.total())

    return app
