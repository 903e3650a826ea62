"""Threads of handlers, in real time."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import weakref
from contextvars import ContextVar

import pytest

from purgatory.jobs.handlers.threads import DaemonThreads, ThreadLeftError
from tests.garbage import without_collector
from tests.patience import PATIENCE_S, until

NAME: ContextVar[str] = ContextVar("NAME")


class Held:
    """A function that begins, and ends when it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()

    def __call__(self) -> int:
        self.begun.release()
        assert self.may_end.wait(PATIENCE_S)
        return threading.get_ident()

    async def wait_begun(self) -> None:
        """Return once it began, once for each call."""
        assert await asyncio.to_thread(self.begun.acquire, True, PATIENCE_S)


async def test_so_many_are_called_at_once_and_the_others_wait() -> None:
    """Each waits for a thread, and one that is done has the next."""
    threads, held = DaemonThreads(2), Held()
    tasks = [asyncio.create_task(threads.run(held)) for _ in range(5)]
    for _ in range(2):
        await held.wait_begun()
    assert not held.begun.acquire(blocking=False)
    held.may_end.set()
    assert len(set(await asyncio.gather(*tasks))) == 2
    # An idle one is taken, and no other is started.
    assert await threads.run(held) in [task.result() for task in tasks]
    threads.shutdown()


async def test_what_a_failed_call_had_is_freed_without_the_garbage_collector() -> None:
    """Also while its thread is idle."""
    threads = DaemonThreads(1)

    class Large:
        pass

    def fail(large: Large) -> None:
        raise KeyError("no")

    large = Large()
    found = weakref.ref(large)
    task = asyncio.create_task(threads.run(fail, large))
    del large
    with without_collector():
        await asyncio.wait([task])
        assert isinstance(task.exception(), KeyError)
        del task
        await until(lambda: found() is None)
    threads.shutdown()


async def test_a_call_has_the_context_and_tells_of_its_end() -> None:
    """What it returns, and what it raises."""
    threads = DaemonThreads(1)
    NAME.set("ours")
    assert await threads.run(NAME.get) == "ours"
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0)
    assert await threads.run(divmod, 7, 2) == (3, 1)
    threads.shutdown()


async def test_what_a_task_cannot_raise_is_told_too() -> None:
    """Whoever asks an empty iterator for more would never end; who exits would end the loop."""

    def close() -> None:
        raise GeneratorExit

    threads = DaemonThreads(1)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RuntimeError, match=r"raised StopIteration\(\)") as raised:
            await threads.run(next, iter(()))
        assert isinstance(raised.value.__cause__, StopIteration)
        with pytest.raises(RuntimeError, match=r"raised SystemExit\(3\)"):
            await threads.run(sys.exit, 3)
        with pytest.raises(RuntimeError, match=r"raised KeyboardInterrupt\(\)"):
            await threads.run(signal.default_int_handler, 2, None)
        with pytest.raises(RuntimeError, match=r"raised GeneratorExit\(\)"):
            await threads.run(close)
    threads.shutdown()


async def test_what_found_no_thread_is_not_called_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked was told that it failed, and may ask again."""
    threads = DaemonThreads(2)
    called: list[int] = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with asyncio.timeout(PATIENCE_S):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await threads.run(called.append, 1)
        await threads.run(called.append, 2)
    assert called == [2]
    threads.shutdown()


async def test_a_thread_at_work_is_left_and_what_waits_is_not_begun() -> None:
    """Whoever is cancelled is told which of the two it was."""
    threads, held = DaemonThreads(1), Held()
    working = asyncio.create_task(threads.run(held))
    await held.wait_begun()
    waiting = asyncio.create_task(threads.run(held))
    await asyncio.sleep(0)
    working.cancel()
    waiting.cancel()
    with pytest.raises(ThreadLeftError):
        await working
    with pytest.raises(asyncio.CancelledError):
        await waiting
    held.may_end.set()
    await threads.run(int)
    assert not held.begun.acquire(blocking=False)
    threads.shutdown()


async def test_what_is_shut_takes_nothing_more() -> None:
    """What waits is cancelled, threads end, and what is at work goes on to its end."""
    threads, held = DaemonThreads(1), Held()
    working = asyncio.create_task(threads.run(held))
    await held.wait_begun()
    waiting = asyncio.create_task(threads.run(held))
    await asyncio.sleep(0)
    threads.shutdown()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(RuntimeError, match="drained"):
        await threads.run(int)
    held.may_end.set()
    ident = await working
    for thread in [thread for thread in threading.enumerate() if thread.ident == ident]:
        assert thread.daemon
        await asyncio.to_thread(thread.join, PATIENCE_S)
        assert not thread.is_alive()
