"""Listeners and operations of one's own, the contexts of their code, and a second purgatory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Response
from starlette.testclient import TestClient

from purgatory import (
    DelayedOperation,
    InvalidKeyError,
    LimitReachedError,
    Limits,
    Purgatory,
    Status,
)
from purgatory.fastapi import LongPollKey, LongPollMiddleware, create_router, install
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.operations import OperationEvent
from purgatory.signals import WaitOperation
from tests.cases import cases
from tests.patience import until_in_turns
from tests.unit.purgatory.waiting import Make, Waiting, parked
from tests.unit.shared_logs import Logs


async def test_an_operation_of_ones_own(purgatory: Purgatory) -> None:
    """Is watched until it completes, by a check or by its deadline."""
    checked, expiring, done = Waiting(), Waiting(20), Waiting()
    assert not purgatory.park_operation(checked, ["a"])
    assert not purgatory.park_operation(expiring, iter(["a", "b"]))
    done.completable = checked.completable = True
    assert purgatory.park_operation(done, ["a"])
    assert await purgatory.check("a") == 1
    await asyncio.sleep(0.02)
    assert [o.status for o in (checked, expiring, done)] == [
        Status.FIRED,
        Status.EXPIRED,
        Status.FIRED,
    ]


@cases("key, error", [("", InvalidKeyError), ("a\nb", InvalidKeyError), ([], TypeError)])
async def test_park_operation_checks_each_key(
    purgatory: Purgatory, key: Any, error: type[Exception]
) -> None:
    """Strings as `park` does, as nobody could fire others; nothing stays watched."""
    with pytest.raises(error, match=r"key|unhashable"):
        purgatory.park_operation(Waiting(), ["a", key])
    assert purgatory.watched_keys() == {} and purgatory.parked == 0


async def test_operations_of_ones_own_watch_any_hashable(purgatory: Purgatory) -> None:
    """Such keys are checked like others, cannot be fired, and operators do not see them."""
    group = ("group", "g\n" * 300)
    single, several = Waiting(), Waiting()
    purgatory.park_operation(single, [group])
    purgatory.park_operation(several, [group, 7, "a"])
    assert (purgatory.waiting(group), purgatory.watched_keys()) == (2, {"a": 1})
    assert purgatory.inspection().watched() == ["a"]
    single.completable = True
    assert await purgatory.check(group) == 1
    several.completable = True
    assert [await purgatory.check(key) for key in (7, 7, group)] == [1, 0, 0]


async def test_a_check_of_very_many_gives_way(purgatory: Purgatory) -> None:
    """A few are tried at once; more by the future that is returned."""
    waiting = [Waiting() for _ in range(1_000)]
    for each in waiting:
        purgatory.park_operation(each, ["a"])
        each.completable = True
    checking = purgatory.check("a")
    assert await checking == 1_000 and purgatory.parked == 0


@cases("keys", ["abc", None, 42])
async def test_park_operation_takes_lists_of_keys_only(purgatory: Purgatory, keys: Any) -> None:
    """`"abc"` would be watched as three keys of one letter."""
    with pytest.raises(TypeError, match=f"keys is .*{keys}.*: give a list of keys, such as"):
        purgatory.park_operation(Waiting(), keys)
    assert purgatory.watched_keys() == {}


async def test_watch_keeps_to_the_number_of_keys(make_purgatory: Make) -> None:
    """`max_keys_per_operation` holds for every operation."""
    async with make_purgatory(limits=Limits(max_keys_per_operation=2)) as purgatory:
        with pytest.raises(ValueError, match="2"):
            purgatory.park_operation(Waiting(), ["a", "b", "c"])
        assert purgatory.watched_keys() == {}


async def test_watch_may_be_exempt_from_the_bounds(make_purgatory: Make) -> None:
    """For what the application itself cannot do without, however many are parked."""
    async with make_purgatory(limits=Limits(max_parked=1)) as purgatory:
        task = await parked(purgatory, "a")
        operation = Waiting()
        with pytest.raises(LimitReachedError):
            purgatory.park_operation(operation, ["a"])
        assert not purgatory.park_operation(operation, ["a"], is_bounded=False)
        await purgatory.drain()
        assert ((await task).status, operation.status) == (Status.DRAINED, Status.DRAINED)


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


Step = Callable[[Seen], Awaitable[object]]


async def wait(seen: Seen, *, count: int = 1) -> None:
    for _ in range(count):
        seen.purgatory.park_operation(Wait(seen), ["k"])


async def own_operation(seen: Seen) -> None:
    seen.purgatory.park_operation(Own(seen), ["k"])


async def park(seen: Seen, **options: Any) -> None:
    await seen.purgatory.park("k", timeout=WAIT_S, **options)
    seen.note("park")


async def park_until(seen: Seen) -> None:
    tries = iter([False, False, False])

    def is_so() -> bool:
        seen.note("until")
        return next(tries, True)

    await park(seen, until=is_so)


async def fire(seen: Seen) -> None:
    """Twice: with the second one, every condition holds."""
    for _ in range(2):
        await seen.purgatory.fire("k")


async def check(seen: Seen) -> None:
    await seen.purgatory.fire("k")
    await seen.purgatory.check("k")


async def end_each(seen: Seen, end: str) -> None:
    for operation in seen.operations:
        getattr(operation, end)()


async def own_callback(seen: Seen) -> None:
    """An operation that is parked here completes those on "k" when it completes."""
    operation = Waiting(60_000)
    operation.then = lambda: [each.force_complete() for each in seen.operations]
    seen.purgatory.park_operation(operation, ["another"])
    operation.completable = True
    await seen.purgatory.check("another")


WAITERS: tuple[Step, ...] = (
    own_operation,
    wait,
    lambda seen: wait(seen, count=100),  # more than are tried in one turn of the event loop
    park,
    park_until,
)
COMPLETERS: tuple[Step, ...] = (
    fire,
    check,
    lambda seen: seen.purgatory.cancel("k"),
    lambda seen: seen.purgatory.drain(),
    lambda seen: end_each(seen, "force_complete"),
    lambda seen: end_each(seen, "cancel"),
    lambda seen: end_each(seen, "run"),
    lambda seen: asyncio.sleep(WAIT_S + 1),
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


async def test_what_a_callback_sets_is_nobody_elses(purgatory: Purgatory) -> None:
    """Neither of who fires, nor of another wait, nor of the next try."""
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


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is said."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_second_one_is_not_installed() -> None:
    """The error names the way out; the same one may be installed under two prefixes."""
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory)
    install(app, purgatory, prefix="/second")
    with pytest.raises(ValueError, match=r"is installed in this application: .*create_router"):
        install(app, Purgatory(), prefix="/third")
    with pytest.raises(TypeError, match=r"purgatory.*install\(FastAPI\(\), Purgatory\(\)\)"):
        install(app, "purgatory")  # type: ignore[arg-type] # that is refused
    app.include_router(create_router(Purgatory("other"), prefix="/other"))


@pytest.mark.parametrize("is_same", [True, False])
def test_the_middleware_has_another_than_the_application(
    is_same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said at the start."""
    app, purgatory = FastAPI(), Purgatory("installed")
    install(app, purgatory)
    app.add_middleware(
        LongPollMiddleware, purgatory=purgatory if is_same else Purgatory("of the middleware")
    )
    with TestClient(app):
        pass
    said = [text for text in warnings(caplog) if "LongPollMiddleware waits on" in text]
    assert len(said) == (not is_same)
    assert all("'of the middleware'" in text and "'installed'" in text for text in said)
    assert all("another object" in text for text in said)


def test_install_twice() -> None:
    """The error says so, where FastAPI warned of duplicate operations."""
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory)
    with pytest.raises(ValueError, match=r"install was called twice.*'/purgatory'.*prefix"):
        install(app, purgatory)


def test_a_router_that_is_included_elsewhere() -> None:
    """Its prefix is the same, and its paths are others: install takes the prefix for itself."""
    app, purgatory = FastAPI(), Purgatory()
    app.include_router(create_router(purgatory), prefix="/v1")
    install(app, purgatory)
    with TestClient(app) as client:
        for prefix in ("/purgatory", "/v1/purgatory"):
            assert client.get(f"{prefix}/watch/k?wait=0").status_code == 200


def test_a_second_purgatory_below_the_first() -> None:
    """Its router may be included before."""
    app = FastAPI()
    app.include_router(create_router(Purgatory(), prefix="/purgatory/other"))
    install(app, Purgatory())
    with TestClient(app) as client:
        for prefix in ("/purgatory", "/purgatory/other"):
            assert client.get(f"{prefix}/watch/k?wait=0").status_code == 200


def test_the_middleware_twice(caplog: pytest.LogCaptureFixture) -> None:
    """One warning says so, and the outer one does what a single one does."""
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory)
    for _ in range(2):
        app.add_middleware(LongPollMiddleware, purgatory=purgatory)

    @app.get("/orders/{order}", dependencies=[Depends(LongPollKey("order:{order}"))])
    async def show(response: Response) -> None:
        response.headers["ETag"] = '"1"'

    with TestClient(app) as client:
        # Longer than a busy machine needs for the endpoint: what is over by then does not park.
        headers = {"Prefer": "wait=1", "If-None-Match": '"1"'}
        assert client.get("/orders/42", headers=headers).status_code == 304
    [said] = warnings(caplog)
    assert "LongPollMiddleware was added twice" in said and "add_middleware" in said
    assert purgatory.statistics().expired == 1
