"""What tests of promises share: processes on one database, in virtual time, and what is between.

A test opens processes (`bench.process`), does to their links what networks do (`cut`, `stall`,
`on`), and looks at what users see: runs of handlers, jobs, `statistics()`, the log.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.errors import SignalsUnavailableError
from purgatory.job_statistics import JobStatistics
from purgatory.jobs import (
    Job,
    JobContext,
    JobLimits,
    MemoryJobStore,
    RetryPolicy,
    StoreUnavailableError,
    WorkerSettings,
)
from purgatory.jobs.model.steps import Fire, Step
from purgatory.jobs.owed_fires import PendingFire
from purgatory.jobs.stores.protocol import NewFire, StoredFire, TakenFire, TakenFires
from purgatory.operations import JobEvent, OperationEvent
from purgatory.outcome import FireResult
from purgatory.signals.model import EntryType
from purgatory.testing import AutojumpEventLoop
from tests.step_methods import MemorySteps
from tests.unit.shared_logs import Logs

START_MS = 1_800_000_000_000
HOUR_S = 3_600.0
LEASE_S = 6.0


def loop_clock() -> Any:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpEventLoop)
    return loop.clock


def pending_timers() -> int:
    """Return how many timers the event loop has that were not cancelled."""
    timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined] # private
    return sum(not timer.cancelled() for timer in timers)


def now_ms() -> int:
    """The clock of the database: the wall clock of the loop."""
    wall_ms: int = loop_clock().wall_ms()
    return wall_ms


@dataclass
class Run:
    """One call of a handler."""

    at_ms: int
    job: JobContext
    payload: Any


class Log(list[Run]):
    """A handler that notes its runs, takes its time, and raises what it is told to."""

    seconds: float = 0.0
    error: BaseException | None = None
    result: Any = None
    most = running = 0

    async def __call__(self, job: JobContext, payload: Any) -> Any:
        self.append(Run(now_ms(), job, payload))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        if self.error is not None:
            raise self.error
        return self.result

    @property
    def at_s(self) -> list[float]:
        """When they began, in seconds since the database was made."""
        return [round((run.at_ms - START_MS) / 1000, 2) for run in self]


class Ticks(list[tuple[float, float]]):
    """A periodic handler: for which time each run is, and when it began, in seconds."""

    error: BaseException | None = None
    seconds: float = 0.0

    async def run(self, job: JobContext) -> None:
        times = (job.deadline.timestamp() * 1000, now_ms())
        at_s, began_s = (round((ms - START_MS) / 1000, 2) for ms in times)
        self.append((at_s, began_s))
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error

    @property
    def times(self) -> list[float]:
        """The times that runs were for, in order."""
        return [at_s for at_s, _ in self]


class Database(MemorySteps):
    """Jobs of all processes."""

    def __init__(self, limits: JobLimits | None = None) -> None:
        super().__init__(now_ms=now_ms, limits=limits)


class OutboxDatabase(Database):
    """And an outbox for fires in transactions, which each process looks into once a second."""

    def __init__(self, limits: JobLimits | None = None) -> None:
        super().__init__(limits)
        self.stored: list[StoredFire] = []
        self.locked: set[str] = set()
        """Keys of which another transaction has the fires, or a job, locked."""
        self.at_once = 1_000

    async def add_in(self, session: Session, specs: Any) -> list[Any]:
        return await self.add(specs)

    async def fire_in(
        self, session: Session, fire: NewFire, on_commit: Callable[[], object]
    ) -> None:
        stored = StoredFire(number=session.number(), created_ms=now_ms(), **asdict(fire))
        session.on_commit += [lambda: self.stored.append(stored), on_commit]

    async def store_fire(self, fire: NewFire) -> None:
        stored = StoredFire(number=Session.number(), created_ms=now_ms(), **asdict(fire))
        self.stored.append(stored)

    async def stored_fires(
        self, origin: str, *, is_own: bool = True, after: int = 0, limit: int
    ) -> list[StoredFire]:
        found = [each for each in self.stored if (each.origin == origin) is is_own]
        return [each for each in found if each.number > after][:limit]

    async def take_fires(self, fires: Sequence[StoredFire]) -> TakenFires:
        taken: list[TakenFire] = []
        waiting: set[str] = set()
        room = self.at_once
        for fire in fires:
            if fire.key in self.locked | waiting or fire not in self.stored:
                waiting |= {fire.key} & self.locked
                continue
            [fired] = await self.run([Fire(fire.key, fire.value_json)])
            room -= 1
            if room < 0:
                return TakenFires(tuple(taken), frozenset(waiting), is_cut=True)
            taken.append(TakenFire(fire, fired))
            if fired.has_more:
                return TakenFires(tuple(taken), frozenset(waiting), is_cut=True)
            self.stored.remove(fire)
        return TakenFires(tuple(taken), frozenset(waiting))


class Session:
    """A transaction of the application."""

    _last = 0

    def __init__(self) -> None:
        self.on_commit: list[Callable[[], object]] = []

    @classmethod
    def number(cls) -> int:
        cls._last += 1
        return cls._last

    def commit(self) -> None:
        for each in self.on_commit:
            each()


class Polled(MemoryJobStore):
    """A connection to the database that hears only of its own changes, as those to SQL do."""

    hears_others = False

    def __init__(self, database: Database) -> None:
        super().__init__(now_ms=now_ms, limits=database.limits)
        self._index = database._index

    def may_wait_on(self, key: str) -> bool:
        """Nobody can know that none of another process does."""
        return True


@dataclass
class Rule:
    """What happens to steps of some kinds on their way."""

    kinds: tuple[str, ...]
    error: Exception | type[Exception] | None = None
    ask_s: float = 0.0
    reply_s: float = 0.0
    is_lost: bool = False
    times: int = 1_000_000
    only: Callable[[Any], bool] = lambda step: True


class Link:
    """One process's way to the database; closing it closes nothing."""

    def __init__(self, database: Database, *, hears: bool) -> None:
        self._store: MemoryJobStore = database if hears else Polled(database)
        self.rules: list[Rule] = []
        self.asked: list[tuple[int, Any]] = []
        """When and what: steps, and the names of other calls."""
        self._error: Exception | None = None
        self._is_free = asyncio.Event()
        self._is_free.set()

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(member):
            return member

        async def call(*args: Any, **options: Any) -> Any:
            return await self._pass([name], lambda: member(*args, **options))

        return call

    async def open(self) -> None:
        await self._pass(["open"], self._store.open)

    async def close(self) -> None:
        """Others use it."""

    async def run(self, steps: Sequence[Step[Any]]) -> list[Any]:
        results: list[Any] = await self._pass(steps, lambda: self._store.run(steps))
        return results

    def cut(self, error: Exception | None = None) -> None:
        """Fail at once from now on, as a server that is down."""
        self._error = error or StoreUnavailableError("nobody listens at nowhere:1")

    def stall(self) -> None:
        """Answer nothing from now on, as to a process that is suspended."""
        self._is_free.clear()

    def mend(self) -> None:
        self._error = None
        self._is_free.set()
        self.rules.clear()

    def on(self, *kinds: str, **options: Any) -> Rule:
        """Fail, delay or lose steps of some kinds, as `on("Start", reply_s=7)` does."""
        self.rules.append(Rule(kinds, **options))
        return self.rules[-1]

    def count(self, *kinds: str, since_ms: int = 0) -> int:
        return sum(_kind(each) in kinds for at, each in self.asked if at >= since_ms)

    async def _pass(self, steps: Sequence[Any], ask: Callable[[], Awaitable[Any]]) -> Any:
        self.asked += [(now_ms(), step) for step in steps]
        await self._is_free.wait()
        if self._error is not None:
            raise self._error
        rule = next((rule for rule in self.rules if self._matches(rule, steps)), Rule(()))
        rule.times -= 1
        await asyncio.sleep(rule.ask_s)
        if rule.error is not None and not rule.is_lost:
            raise rule.error
        result = await ask()
        await asyncio.sleep(rule.reply_s)
        await self._is_free.wait()
        if rule.is_lost:
            raise StoreUnavailableError("the connection broke")
        return result

    @staticmethod
    def _matches(rule: Rule, steps: Sequence[Any]) -> bool:
        return rule.times > 0 and any(_kind(s) in rule.kinds and rule.only(s) for s in steps)


def _kind(step: Any) -> str:
    return step if isinstance(step, str) else type(step).__name__


@dataclass
class Records:
    """Pending fires, kept by the server of shared signals for all processes."""

    kept: list[bytes] = field(default_factory=list)
    is_full: bool = False
    reads: int = 0

    async def add(self, record: bytes) -> None:
        if self.is_full:
            raise SignalsUnavailableError("no room")
        self.kept.append(record)

    async def first(self, limit: int, skipped: int = 0) -> list[bytes]:
        self.reads += 1
        await asyncio.sleep(0)
        return self.kept[skipped : skipped + limit]

    async def remove(self, records: Sequence[bytes]) -> None:
        for record in records:
            self.kept.remove(record)


class Signals(Logs):
    """Signals that processes share, without a server: `others` are told of each."""

    def __init__(self, records: Records, others: list[Signals]) -> None:
        super().__init__()
        self.pending_fires: Any = records
        self.others = others
        others.append(self)
        self.fired: list[tuple[str, str]] = []

    async def append(self, items: Any, **options: Any) -> Any:
        names = options.get("idempotency")
        result = []
        for kind, key, _value in items:
            assert kind is EntryType.FIRED
            self.fired.append((key, names.name if names else ""))
            for other in self.others:
                other.fire(key)
            result.append(FireResult("", 1, 0))
        return result


class Ends(list[tuple[str, str]]):
    """A listener that notes each job that ended: its id, and the state it is in."""

    def __call__(self, event: OperationEvent) -> None:
        """Of operations it notes nothing."""

    def job_event(self, event: JobEvent) -> None:
        self.append((event.job_id, event.state))


class Process:
    """A purgatory with its link: attributes of the purgatory are those of the process."""

    def __init__(self, purgatory: Purgatory, link: Link, ends: Ends) -> None:
        self.purgatory = purgatory
        self.link = link
        self.ends = ends

    def __getattr__(self, name: str) -> Any:
        return getattr(self.purgatory, name)

    @property
    def statistics(self) -> JobStatistics:
        found = self.purgatory.statistics().jobs
        assert found is not None
        return found

    def is_counting(self, **counts: int) -> bool:
        """Return True iff the statistics have these counts."""
        return {name: getattr(self.statistics, name) for name in counts} == counts

    async def crash(self) -> None:
        """End as kill -9 does: what it has stays leased. Needs grace_ms=0."""
        self.link.cut()
        await self.purgatory.close()


class Bench:
    """Processes on one database. All have a handler "note", unless they are given others."""

    def __init__(self, make: Callable[..., Purgatory], caplog: pytest.LogCaptureFixture) -> None:
        loop_clock().set_wall(START_MS)
        self.make = make
        self.caplog = caplog
        self.database: Any = Database()
        self.log = Log()
        self.ticks = Ticks()
        self.records = Records()
        self.peers: list[Signals] = []
        self.stack = AsyncExitStack()

    async def process(
        self,
        handlers: Mapping[str, Any] | None = None,
        *,
        hears: bool = True,
        shares_signals: bool = False,
        down: bool = False,
        bounds: Mapping[str, Any] | None = None,
        periodic: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Process:
        """Open a process; `settings` are those of its worker."""
        link = Link(self.database, hears=hears)
        if down:
            link.cut()
        settings = {"lease_ms": int(LEASE_S * 1000), "grace_ms": 0, **settings}
        settings.setdefault("retry", RetryPolicy(first_ms=1_000, max_ms=8_000, jitter=0))
        options: dict[str, Any] = {}
        if shares_signals:
            options = {"signals": Signals(self.records, self.peers)}
        ends = Ends()
        options["listeners"] = [ends]
        made = self.make(jobs=link, job_settings=WorkerSettings(**settings), **options)
        for name, handler in ({"note": self.log} if handlers is None else handlers).items():
            made.handler(name, **(bounds or {}))(handler)
        if periodic is not None:
            made.periodic("tick", **periodic)(self.ticks.run)
        made.handled_elsewhere({"note", "slow"} - set(made.handlers.own_names))
        return Process(await self.stack.enter_async_context(made), link, ends)

    async def job(self, job: Any) -> Job:
        """Return a job as it is stored."""
        [found] = await self.database.get([getattr(job, "id", job)])
        assert isinstance(found, Job)
        return found

    async def take(self, job: Any, *, start: bool = False, lease_s: float = 60) -> Job:
        """Lease the jobs that are due for another worker, as far as this one does not have them."""
        await self.database.open()
        claimed = await self.database.claim(
            "other", within_ms=0, limit=1_000, lease_ms=int(lease_s * 1000)
        )
        found: Job
        [found] = [each for each in claimed.jobs if each.id == getattr(job, "id", job)]
        if start:
            await self.database.start([found.claim], lease_ms=int(lease_s * 1000))
        return found

    def actions(self, *names: str) -> list[str]:
        """What the log names, of these."""
        found = [getattr(record, "action", "") for record in self.caplog.records]
        return [each for each in found if each in names or (not names and each)]

    def record(self, key: str, value: Any = 1, *, age_ms: int = 0) -> None:
        """Keep a pending fire of another process."""
        fired_ms = now_ms() - age_ms
        self.records.kept.append(PendingFire(key, json.dumps(value), fired_ms, fired_ms).record)
