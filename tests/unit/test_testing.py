"""MockClock, AutojumpEventLoop, fixtures and transports: time under a test's control."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from purgatory import Purgatory
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.testing import AutojumpEventLoop, DeadlockError, MockClock, current_clock
from purgatory.testing.asgi_transport import StreamingTransport
from tests.cases import cases
from tests.pages.blocks import ROOT, blocks

Result = TypeVar("Result")

# Real seconds that a loop waits for other threads before it gives up; only deadlocks take so long.
PATIENCE = 0.01


def run(
    main: Coroutine[object, object, Result],
    clock: MockClock | None = None,
    patience: float = PATIENCE,
) -> Result:
    """Run `main` to its end on a new loop."""
    with asyncio.Runner(loop_factory=lambda: AutojumpEventLoop(clock, patience=patience)) as runner:
        return runner.run(main)


def test_a_mock_clock_stands_still_until_it_is_moved() -> None:
    """Monotonic and wall time both begin at its start, and move together."""
    clock = MockClock(start_ms=5)
    assert (clock.now_ns(), clock.now_ns(), clock.wall_ms()) == (5_000_000, 5_000_000, 5)
    clock.advance(10)
    assert (clock.now_ns(), clock.wall_ms()) == (15_000_000, 15)
    clock.advance_ns(1)
    assert (clock.now_ns(), clock.wall_ms()) == (15_000_001, 15)
    assert MockClock().now_ns() == 0


def test_the_wall_of_a_mock_clock_leaps_alone() -> None:
    """Monotonic time does not notice, and both go on at the same pace."""
    clock = MockClock(start_ms=1_000)
    clock.set_wall(1_700_000_000_000)
    assert (clock.wall_ms(), clock.now_ns()) == (1_700_000_000_000, 1_000_000_000)
    clock.advance(7)
    assert clock.wall_ms() == 1_700_000_000_007


def test_sleeping_jumps_to_the_time(clock: MockClock) -> None:
    """An idle loop moves its clock to the next timer, exactly, and nobody waits."""
    times: list[int] = []

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        times.append(clock.wall_ms())

    async def main() -> None:
        await asyncio.gather(sleep(3_600), sleep(0.25), sleep(0.007))

    run(main(), clock)
    assert times == [1_007, 1_250, 3_601_000]


def test_time_does_not_pass_while_there_is_something_to_do() -> None:
    """However many turns a task takes, timers only come when everybody waits."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(0.001, pytest.fail, "time has passed")
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert loop.time() == 0
        timer.cancel()

    run(main())


def test_waiting_for_nothing_is_a_deadlock() -> None:
    """No timer, no file, no thread: an error instead of a test that hangs."""

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(
        DeadlockError, match="a wake-up was lost, or a task waits for something that never"
    ):
        run(main())


def test_another_thread_is_given_a_moment() -> None:
    """While no timer is armed, the loop waits for a thread that calls it."""

    async def main() -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()
        thread = threading.Thread(
            target=loop.call_soon_threadsafe, args=(answer.set_result, "from a thread")
        )
        thread.start()
        result = await answer
        thread.join()
        return result

    assert run(main(), patience=60) == "from a thread"


@cases("work", ["a sleep", "a query", "computing", "a call of a call"])
def test_time_stands_still_while_a_thread_is_at_work(work: str) -> None:
    """However it works, and whoever waits for it: the timer comes later."""

    def sleep() -> None:
        time.sleep(0.05)

    def query() -> None:
        with closing(sqlite3.connect(":memory:")) as connection:
            numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200000)"
            connection.execute(f"{numbers} SELECT sum(i) FROM n").fetchall()

    def compute() -> None:
        sum(number * number for number in range(200_000))

    def pass_on() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(sleep).result()

    functions = {"a sleep": sleep, "a query": query, "computing": compute}

    async def main() -> float:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(60, pytest.fail, "time has passed")
        for _ in range(3):
            await asyncio.to_thread(functions.get(work, pass_on))
        timer.cancel()
        return loop.time()

    assert run(main(), patience=60) == 0


def test_time_passes_while_a_thread_waits() -> None:
    """For an event, a queue or a lock: for what happens in the time of the loop."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        event, items = threading.Event(), queue.SimpleQueue[int]()
        waiting = [asyncio.to_thread(wait) for wait in (event.wait, lambda: items.get())]
        loop.call_later(60, event.set)
        loop.call_later(120, items.put, 1)
        assert await asyncio.gather(*waiting) == [True, 1]
        return loop.time()

    assert run(main(), patience=60) == 120


def test_a_thread_that_waits_again_and_again_does_not_hold_up_the_time() -> None:
    """As one that flushes spans, or looks for a change: it is not at work."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.0001):
            pass

    async def main() -> float:
        thread = threading.Thread(target=look)
        thread.start()
        for _ in range(10):
            await asyncio.sleep(60)
        is_over.set()
        thread.join()
        return asyncio.get_running_loop().time()

    assert run(main(), patience=60) == 600


def test_a_thread_that_does_not_end_holds_up_the_time_once() -> None:
    """For as long as the loop's patience lasts, and not for each timer after that."""
    is_over = False

    def hang() -> None:
        while not is_over:
            time.sleep(0.001)

    async def main() -> float:
        nonlocal is_over
        hanging = asyncio.create_task(asyncio.to_thread(hang))
        started = time.monotonic()
        await asyncio.sleep(60)
        took = time.monotonic() - started
        is_over = True
        await hanging
        return took

    assert run(main(), patience=0.05) >= 0.05


def test_threads_are_waited_for_in_real_time() -> None:
    """At the end of the loop, for which asyncio gives them five minutes: of virtual time, none."""
    is_over = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        work = loop.run_in_executor(None, is_over.wait, 10)
        threading.Timer(0.05, is_over.set).start()
        await loop.shutdown_default_executor(timeout=300)
        assert work.done() and loop.time() == 0

    run(main(), patience=10)


def test_a_purgatory_with_another_clock_is_an_error() -> None:
    """Its deadlines would never pass, and the loop would not notice."""

    async def scenario() -> None:
        async with Purgatory():
            pass

    with pytest.raises(ValueError, match=r"Purgatory\(clock=asyncio.get_running_loop\(\).clock\)"):
        run(scenario())


def test_a_wait_for_ever_beside_a_worker_is_a_deadlock() -> None:
    """The worker always has a timer, for its next poll, so the jumps are counted."""

    async def scenario() -> None:
        purgatory = Purgatory(clock=current_clock(), jobs=MemoryJobStore())

        @purgatory.handler
        async def stuck(_: JobContext) -> None:
            await asyncio.Event().wait()

        async with purgatory:
            await (await purgatory.defer("stuck", delay=1)).wait()

    with (
        asyncio.Runner(loop_factory=lambda: AutojumpEventLoop(max_jumps=1_000)) as runner,
        pytest.raises(DeadlockError, match=r"jumped 1000 times, over 0\.\d days.*asyncio.timeout"),
    ):
        runner.run(scenario())


def test_jumps_are_counted_in_each_run() -> None:
    """A loop that many tests share does not end with the sum of their jumps."""

    async def scenario() -> None:
        for _ in range(10):
            await asyncio.sleep(1)

    with asyncio.Runner(loop_factory=lambda: AutojumpEventLoop(max_jumps=10)) as runner:
        for _ in range(3):
            runner.run(scenario())


PAGE = ROOT / "docs/how-to/test-your-code.md"
SUITE_WITH_A_DATABASE = """
import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from purgatory.jobs import JobContext
from purgatory.jobs.sql import SqlJobStore, migrate

pytest_plugins = ["purgatory.testing.plugin"]


@pytest.fixture
def database(tmp_path):
    return f"sqlite+aiosqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def purgatory_job_store(purgatory_clock, database):
    return SqlJobStore(database, now_ms=purgatory_clock.wall_ms)


def test_an_order_is_cancelled_after_an_hour(purgatory_run, purgatory, database):
    cancelled = []

    @purgatory.handler
    def cancel_order(job: JobContext, order: int) -> None:
        time.sleep(0.05)
        cancelled.append(order)

    async def scenario():
        await migrate(database)
        engine = create_async_engine(database)
        at = datetime.now(UTC) + timedelta(minutes=1)
        async with purgatory:
            async with AsyncSession(engine) as session:
                job = await purgatory.defer("cancel_order", 42, at=at, session=session)
                await session.commit()
            assert (await job.wait(timeout=90)).state == "done"
        await engine.dispose()

    purgatory_run(scenario())
    assert cancelled == [42]
"""
SUITE_ON_OTHER_LOOPS = """
import asyncio

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from purgatory import Purgatory
from purgatory.fastapi import install
from purgatory.testing import MockClock

pytest_plugins = ["purgatory.testing.plugin"]
ERROR = "has the clock of the fixture purgatory_clock.* stands still on this event loop"


def test_an_ordinary_loop(purgatory):
    async def scenario():
        async with purgatory:
            await purgatory.park("order:42:paid", timeout=900)

    with pytest.raises(ValueError, match=ERROR):
        asyncio.run(scenario())


def test_the_loop_of_a_test_client(purgatory):
    app = FastAPI()
    install(app, purgatory)
    with pytest.raises(ValueError, match=ERROR), TestClient(app):
        pass


def test_a_clock_that_is_moved_by_hand():
    async def scenario():
        clock = MockClock()
        async with Purgatory(clock=clock) as purgatory:
            clock.advance(1_000)
            return purgatory.parked

    assert asyncio.run(scenario()) == 0
"""


def test_suites_of_users(tmp_path: Path) -> None:
    """The how-to's own, one of jobs in a database, one on other loops: warnings are errors.

    In a database, of a transaction, and of a handler that is a plain function. On other loops the
    clock would stand still: an error, unless it is one that tests move themselves.
    """
    [suite] = [block.text for block in blocks(PAGE) if "# test_orders.py" in block.text]
    suites = {"orders": suite, "database": SUITE_WITH_A_DATABASE, "loops": SUITE_ON_OTHER_LOOPS}
    for name, text in suites.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    result = subprocess.run(
        [*command, "-p", "anyio.pytest_plugin", f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=tmp_path,
        # Of the plug-ins here, only that for async tests is the user's; others take seconds.
        env={"PYTHONPATH": str(ROOT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "8 passed" in result.stdout, result.stdout + result.stderr


async def test_pieces_arrive_as_they_are_sent() -> None:
    """And the application hears that the client has left."""
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = await receive()
        assert request == {"type": "http.request", "body": b"hello", "more_body": False}
        assert (scope["path"], scope["raw_path"]) == ("/a b", b"/a%20b")
        assert scope["query_string"] == b"x=1"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})
        for piece in (b"one", b"", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with (
        httpx.AsyncClient(transport=StreamingTransport(app)) as client,
        client.stream("POST", "http://test/a%20b?x=1", content=b"hello") as response,
    ):
        pieces = response.aiter_raw()
        assert [await anext(pieces), await anext(pieces)] == [b"one", b"two"]
        assert response.headers["x"] == "y"
    assert left.is_set()


async def test_what_an_application_raises() -> None:
    """Before its response, and within it."""

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/within":
            await send({"type": "http.response.start", "status": 200})
        if scope["path"] != "/silent":
            raise LookupError(scope["path"])

    async with httpx.AsyncClient(transport=StreamingTransport(fails)) as client:
        for path in ("/before", "/within"):
            with pytest.raises(LookupError, match=path):
                await client.get(f"http://test{path}")
        with pytest.raises(RuntimeError, match="without a response"):
            await client.get("http://test/silent")


async def test_closing_ends_what_is_not_complete() -> None:
    """Also an application that does not listen."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await asyncio.Event().wait()

    transport = StreamingTransport(app)
    request = httpx.Request("GET", "http://test/")
    before = asyncio.all_tasks()
    await transport.handle_async_request(request)
    await transport.aclose()
    assert asyncio.all_tasks() == before
