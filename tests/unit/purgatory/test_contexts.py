"""The context (`contextvars`) of a waiter's code: its own, whatever ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest

from purgatory import DelayedOperation, Purgatory
from purgatory.event_loop.parked_operations import cancelling_on_failure
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.operations import OperationEvent
from purgatory.outcome import Status
from purgatory.signals import WaitOperation
from tests.cases import cases
from tests.patience import until_in_turns
from tests.unit.purgatory.waiting import Make, Waiting, parked
from tests.unit.shared_logs import Logs

NAME: ContextVar[str] = ContextVar("NAME", default="nobody")
WAIT_S = 20.0


class Seen:
    """What the code of the waiter on "k" has seen, and its operations."""

    def __init__(self, purgatory: Purgatory) -> None:
        self.purgatory = purgatory
        self.operations: list[DelayedOperation] = []
        self.names: list[tuple[str, str]] = []

    def note(self, what: str) -> None:
        self.names.append((what, NAME.get()))

    def listen(self, event: OperationEvent) -> None:
        """As a listener of the purgatory."""
        if event.keys == ("k",):
            self.note(f"listener: {event.status}")
            if event.status is Status.PENDING:
                self.operations.append(event.operation)


class Own(DelayedOperation):
    """An operation of a user's own, which completes when it is tried for the fourth time."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(round(WAIT_S * 1000))
        self.seen = seen
        self.tries = 0

    def try_complete(self) -> bool:
        self.seen.note("try_complete")
        self.tries += 1
        return self.tries > 3 and self.force_complete()

    def on_complete(self) -> None:
        self.seen.note("on_complete")
        # What it begins is as much its own.
        asyncio.get_running_loop().call_soon(self.seen.note, "call_soon")

    def on_expiration(self) -> None:
        self.seen.note("on_expiration")

    def on_cancellation(self) -> None:
        self.seen.note("on_cancellation")


class Wait(WaitOperation):
    """A wait for a signal with a responder of a user's own."""

    def __init__(self, seen: Seen) -> None:
        signals = seen.purgatory.signals
        super().__init__(round(WAIT_S * 1000), signals, ("k",), signals.head_of("k"))
        self.seen = seen

    def on_complete(self) -> None:
        self.seen.note("on_complete")


async def own_operation(seen: Seen) -> None:
    seen.purgatory.park_operation(Own(seen), ["k"])


async def own_wait(seen: Seen) -> None:
    seen.purgatory.park_operation(Wait(seen), ["k"])


async def many_waits(seen: Seen) -> None:
    """More than are tried in one turn of the event loop."""
    for _ in range(100):
        seen.purgatory.park_operation(Wait(seen), ["k"])


async def park(seen: Seen) -> None:
    await seen.purgatory.park("k", timeout=WAIT_S)
    seen.note("park")


async def park_until(seen: Seen) -> None:
    tries = iter([False, False, False])

    def is_so() -> bool:
        seen.note("until")
        return next(tries, True)

    await seen.purgatory.park("k", timeout=WAIT_S, until=is_so)
    seen.note("park")


async def fire(seen: Seen) -> None:
    """Twice: with the second one, every condition holds."""
    for _ in range(2):
        await seen.purgatory.fire("k")


async def check(seen: Seen) -> None:
    await seen.purgatory.fire("k")
    await seen.purgatory.check("k")


async def cancel_key(seen: Seen) -> None:
    await seen.purgatory.cancel("k")


async def drain(seen: Seen) -> None:
    await seen.purgatory.drain()


async def force_complete(seen: Seen) -> None:
    for operation in seen.operations:
        operation.force_complete()


async def cancel(seen: Seen) -> None:
    for operation in seen.operations:
        operation.cancel()


async def run(seen: Seen) -> None:
    for operation in seen.operations:
        operation.run()


async def expire(seen: Seen) -> None:
    await asyncio.sleep(WAIT_S + 1)


async def own_callback(seen: Seen) -> None:
    """An operation that is parked here completes those on "k" when it completes."""
    operation = Waiting(60_000)
    operation.then = lambda: [each.force_complete() for each in seen.operations]
    seen.purgatory.park_operation(operation, ["another"])
    operation.completable = True
    await seen.purgatory.check("another")


Step = Callable[[Seen], Awaitable[None]]
WAITERS: tuple[Step, ...] = (own_operation, own_wait, many_waits, park, park_until)
COMPLETERS: tuple[Step, ...] = (
    fire,
    check,
    cancel_key,
    drain,
    force_complete,
    cancel,
    run,
    expire,
    own_callback,
)


async def _as(name: str, step: Step, seen: Seen) -> None:
    NAME.set(name)
    await step(seen)


async def _check_law(make_purgatory: Make, wait: Step, complete: Step, **options: object) -> None:
    async with make_purgatory(**options) as purgatory:
        pass
    seen = Seen(purgatory)
    purgatory.add_listener(seen.listen)
    async with purgatory:
        # Another one arms the timer.
        NAME.set("another")
        another = await parked(purgatory, "unrelated", timeout=WAIT_S)
        waiting = asyncio.create_task(_as("waiter", wait, seen))
        await until_in_turns(lambda: bool(seen.operations))
        await asyncio.create_task(_as("completer", complete, seen))
        await waiting
        await until_in_turns(lambda: all(each.is_completed for each in seen.operations))
        await asyncio.sleep(0)
        await purgatory.drain()
        await another
    assert {name for _, name in seen.names} == {"waiter"}, seen.names
    assert sum(what.startswith("listener") for what, _ in seen.names) == 2 * len(seen.operations)


@cases("complete", COMPLETERS)
@cases("wait", WAITERS)
async def test_the_code_of_a_waiter_runs_in_its_context(
    make_purgatory: Make, wait: Step, complete: Step
) -> None:
    """Conditions, callbacks, listeners and what they begin, whoever ends the wait, and however."""
    await _check_law(make_purgatory, wait, complete)


@cases("wait", WAITERS)
async def test_so_it_does_when_an_entry_of_a_shared_log_is_applied(
    make_purgatory: Make, wait: Step
) -> None:
    """By whichever task has read it."""
    logs = Logs()

    async def apply(seen: Seen) -> None:
        for _ in range(2):
            if isinstance(ended := logs.fire("k"), asyncio.Future):
                await ended

    await _check_law(make_purgatory, wait, apply, signals=logs)


async def test_a_task_that_is_cancelled_has_its_listeners_called_in_its_context(
    make_purgatory: Make,
) -> None:
    """Also where it shares the context with the task that cancels it."""
    async with make_purgatory() as purgatory:
        pass
    seen = Seen(purgatory)
    purgatory.add_listener(seen.listen)
    async with purgatory:
        waiting = asyncio.create_task(_as("waiter", park, seen))
        await asyncio.sleep(0)
        NAME.set("completer")
        waiting.cancel()
        await asyncio.wait([waiting])
    assert [name for _, name in seen.names] == ["waiter", "waiter"]


async def test_what_a_callback_sets_is_nobody_elses(make_purgatory: Make) -> None:
    """Neither of who fires, nor of another wait, nor of the next try."""
    async with make_purgatory() as purgatory:
        seen: list[str] = []

        class Setting(Waiting):
            def try_complete(self) -> bool:
                if self.completable:
                    seen.append(NAME.get())
                    NAME.set("set by a callback")
                return False

        async def waiter() -> None:
            NAME.set("waiter")
            for _ in range(2):
                purgatory.park_operation(operation := Setting(), ["k"])
                operation.completable = True

        await asyncio.create_task(waiter())
        for _ in range(2):
            await purgatory.fire("k")
            seen.append(NAME.get())
        await purgatory.drain()
        assert seen == ["waiter", "waiter", "nobody"] * 2


async def test_the_context_of_a_failing_block_keeps_no_operations(make_purgatory: Make) -> None:
    """A callback that parks again would add to the list of the block that parked first."""
    async with make_purgatory() as purgatory:
        first, second = Waiting(), Waiting()
        first.then = lambda: purgatory.park_operation(second, ["k"])
        with cancelling_on_failure():
            purgatory.park_operation(first, ["k"])
        with pytest.raises(ZeroDivisionError), cancelling_on_failure():
            raise ZeroDivisionError
        first.completable = True
        assert await purgatory.check("k") == 1
        assert second.status is Status.PENDING
        await purgatory.drain()


async def test_handlers_of_jobs_run_in_no_requests_context(make_purgatory: Make) -> None:
    """Whoever has deferred the job, has fired its key, or has armed the timer of its deadline."""
    async with make_purgatory(jobs=MemoryJobStore()) as purgatory:
        seen: list[str] = []

        @purgatory.handler("note")
        async def note(job: JobContext) -> None:
            seen.append(NAME.get())
            NAME.set("another job")

        async def request(name: str) -> None:
            NAME.set(name)
            await purgatory.defer("note", delay=5, keys=["k"])
            await purgatory.defer("note", delay=5)
            await purgatory.park("nothing", timeout=5)
            await purgatory.defer("note", delay=0)
            await purgatory.fire("k")

        await asyncio.gather(*(asyncio.create_task(request(name)) for name in "ab"))
        await until_in_turns(lambda: len(seen) == 6)
        assert set(seen) == {"nobody"}
