"""Fixtures of pytest for code that waits: `pytest_plugins = ["purgatory.testing.plugin"]`.

Nothing is registered by itself: an application that does not name it here has none of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from purgatory import Purgatory
from purgatory.jobs import MemoryJobStore
from purgatory.testing.autojump_event_loop import AutojumpEventLoop, MockClock
from purgatory.timer import SystemClock

if TYPE_CHECKING:
    from purgatory.client import AsyncClient

Result = TypeVar("Result")


@pytest.fixture
def purgatory_clock() -> MockClock:
    """The time of this test, which stands still until every task waits, or the test moves it.

    It starts at the present time, so that `datetime.now()` plus an hour is in an hour.
    """
    clock = MockClock()
    clock.set_wall(SystemClock().wall_ms())
    clock.is_of_loop = True
    return clock


@pytest.fixture
def purgatory_loop_factory(purgatory_clock: MockClock) -> Callable[[], AutojumpEventLoop]:
    """A function that makes the event loop of that time, for plugins that run async tests."""
    return lambda: AutojumpEventLoop(purgatory_clock)


@pytest.fixture
def purgatory_run(
    purgatory_loop_factory: Callable[[], AutojumpEventLoop],
) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """A function that runs a coroutine to its end in that time, and returns its result."""

    def run(main: Coroutine[Any, Any, Result]) -> Result:
        with asyncio.Runner(loop_factory=purgatory_loop_factory) as runner:
            return runner.run(main)

    return run


@pytest.fixture
def purgatory_job_store() -> MemoryJobStore:
    """An empty store of jobs, for the purgatory of this test."""
    return MemoryJobStore()


@pytest.fixture
def purgatory(purgatory_clock: MockClock, purgatory_job_store: MemoryJobStore) -> Purgatory:
    """A purgatory in that time, with that store: open it with `async with`, or install it."""
    return Purgatory(clock=purgatory_clock, jobs=purgatory_job_store)


@pytest.fixture
def purgatory_client(
    purgatory: Purgatory, purgatory_clock: MockClock
) -> Callable[[], AbstractAsyncContextManager[AsyncClient]]:
    """A function that opens `purgatory` and a client of it, in `async with`.

    The real `AsyncClient`, in the time of this test, on an application without a socket; for code
    that takes a client. Everything is allowed. Needs the extras client and fastapi.
    """

    @asynccontextmanager
    async def open_client() -> AsyncIterator[AsyncClient]:
        # Imported here: the other fixtures need neither.
        import httpx
        from fastapi import FastAPI

        from purgatory.client import AsyncClient
        from purgatory.fastapi import ALLOW_ANYONE, install
        from purgatory.testing.asgi_transport import StreamingTransport

        app = FastAPI()
        install(app, purgatory, authorize=ALLOW_ANYONE)
        http = httpx.AsyncClient(transport=StreamingTransport(app))
        async with app.router.lifespan_context(app), http:
            yield AsyncClient("http://test", http=http, clock=purgatory_clock)

    return open_client
