"""Defers jobs in groups, while their keys fire: here, and from the other racer."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from purgatory import FireResult, Purgatory
from purgatory.errors import SignalsUnavailableError
from purgatory.jobs import Job, JobOutcome, JobsNotFiredError, JobStore, StoreUnavailableError
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added, Prune
from tests.chaos.races.peer import Orders, Peer, Reply
from tests.patience import PATIENCE_S

REFUSALS = (SignalsUnavailableError, StoreUnavailableError, JobsNotFiredError)
# Jobs that one call stores, as a batch over HTTP does. As many groups of each size as here.
GROUPS = [1, 1, 8, 64, 64, 64]
# Groups at once: they share transactions and round trips with one another, and with fires.
LANES = 3
SAY_EVERY = 10_000
PRUNE_EVERY = 2_000
# More than are waited for at any time.
KEPT = 5_000
SHORTEST_S, LONGEST_S = 0.001, 1.0


@dataclass
class Races:
    """What came of them: none may be missed."""

    pairs: int = 0
    missed: list[str] = field(default_factory=list)
    refused: int = 0
    """Others, of which the defer or a fire raised that the store or the signals are away."""
    by_the_fire: int = 0
    """Pairs whose job a fire found in the store; of most others, the history had it."""
    pending: int = 0
    """Pairs of which a fire was acknowledged although the store took too long."""
    conditions: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """Return what `of_json` reads."""
        return dict(vars(self))

    @classmethod
    def of_json(cls, fields: dict[str, Any]) -> Races:
        """Return the races of another process."""
        return cls(**{**fields, "conditions": Counter(fields["conditions"])})

    def __add__(self, other: Races) -> Races:
        """Return the sum of two racers."""
        return Races(
            self.pairs + other.pairs,
            self.missed + other.missed,
            self.refused + other.refused,
            self.by_the_fire + other.by_the_fire,
            self.pending + other.pending,
            self.conditions + other.conditions,
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """A job, and which of its keys fire: as many as it needs."""

    spec: JobSpec
    fired: Sequence[str]


@dataclass
class Pauses:
    """Seconds to wait before a group is stored, and before its keys fire, on average."""

    store_s: float = SHORTEST_S
    fire_s: float = SHORTEST_S

    def approach(self, by_the_fire: float) -> None:
        """Let both meet closer: half of the jobs should be decided by the fire."""
        step = 1 + abs(by_the_fire - 0.5) / 2
        earlier, later = (1 / step, step) if by_the_fire > 0.5 else (step, 1 / step)
        self.fire_s = min(max(self.fire_s * earlier, SHORTEST_S), LONGEST_S)
        self.store_s = min(max(self.store_s * later, SHORTEST_S), LONGEST_S)


class Racer:
    """Half of the races, with a purgatory and a store."""

    def __init__(
        self,
        name: str,
        purgatory: Purgatory,
        store: JobStore,
        *,
        seed: int,
        has_cursor: bool = True,
        say: Callable[[], object] = lambda: None,
    ) -> None:
        """Name all keys after the racer, so that no other one has them."""
        self._name = name
        self._purgatory = purgatory
        self._store = store
        self._chance = random.Random(f"{name}{seed}")
        self._has_cursor = has_cursor
        self._say = say
        # {size of a group: when it is stored, and when its keys fire}. Followed as groups go by, so
        # that either may be first: it depends on the machine and on what else that does.
        self._pauses = {size: Pauses() for size in GROUPS}
        self._said = self._pruned = 0
        self.races = Races()

    async def fire(self, orders: Orders) -> Reply:
        """Fire keys, each after its pause; called for this racer and for the other."""
        begun = time.monotonic()
        firing: dict[str, asyncio.Task[FireResult]] = {}
        for pause_s, key in sorted(orders):
            if (rest_s := begun + pause_s - time.monotonic()) > 0:
                await asyncio.sleep(rest_s)
            firing[key] = asyncio.create_task(self._purgatory.fire(key))
        reply = Reply()
        for key, task in firing.items():
            try:
                fired = await task
            except REFUSALS:
                reply.refused.append(key)
            else:
                reply.jobs += fired.jobs
                if fired.jobs_pending:
                    reply.pending.append(key)
        return reply

    async def run(self, pairs: int, peer: Peer) -> None:
        """Race so many pairs, several groups at once."""
        left = pairs

        async def work() -> None:
            nonlocal left
            while left:
                size = self._chance.choice(GROUPS)
                count = min(size, left)
                left -= count
                await self._race([self._pair(left + each) for each in range(count)], size, peer)
                await self._prune()
                if self.races.pairs >= self._said + SAY_EVERY:
                    self._said = self.races.pairs
                    self._say()

        async with asyncio.TaskGroup() as group:
            for _ in range(LANES):
                group.create_task(work())

    def _pair(self, number: int) -> Pair:
        chance = self._chance
        keys = [f"{self._name}{number}:{each}" for each in range(chance.choice([1, 1, 1, 2, 3]))]
        needed = chance.randint(1, len(keys))
        self.races.conditions[f"{needed} of {len(keys)}"] += 1
        spec = self._purgatory.jobs.spec(
            "none",
            delay=3_600,
            keys=keys,
            until=needed,
            since=self._purgatory.cursor(*keys) if self._has_cursor else None,
            on_fire="cancel",
        )
        return Pair(spec, chance.sample(keys, needed))

    async def _race(self, pairs: Sequence[Pair], size: int, peer: Peer) -> None:
        """Store a group while its keys fire; note which jobs that did not decide."""
        pauses = self._pauses[size]
        ours, theirs = self._orders(pairs, pauses.fire_s)
        firing = asyncio.gather(self.fire(ours), peer.fire(theirs))
        await asyncio.sleep(self._chance.uniform(0, 2) * pauses.store_s)
        try:
            added = await self._purgatory.jobs.add([pair.spec for pair in pairs])
        except REFUSALS:
            # On a machine that is far too busy: nothing was promised.
            await firing
            self.races.refused += len(pairs)
            return
        replies = await firing
        by_the_fire = sum(reply.jobs for reply in replies)
        self.races.by_the_fire += by_the_fire
        pauses.approach(by_the_fire / len(pairs))
        pending = {key for reply in replies for key in reply.pending}
        refused = {key for reply in replies for key in reply.refused}
        stored = await self._read(added)
        until = time.monotonic() + PATIENCE_S
        for pair, job in zip(pairs, stored, strict=True):
            if refused.isdisjoint(pair.fired):
                is_pending = not pending.isdisjoint(pair.fired)
                await self._check(pair, job, is_pending=is_pending, until=until)
            else:
                self.races.refused += 1

    def _orders(self, pairs: Sequence[Pair], fire_s: float) -> tuple[Orders, Orders]:
        """Return which keys this racer fires and when, and which the other."""
        chance = self._chance
        both: list[list[tuple[float, str]]] = [[], []]
        for pair in pairs:
            for key in pair.fired:
                # Not all at one time, so that some meet each moment of storing.
                pause_s = fire_s * max(0.0, chance.gauss(1, 0.5))
                chance.choice(both).append((pause_s, key))
        return both[0], both[1]

    async def _read(self, added: Sequence[object]) -> list[Job]:
        job_ids = []
        for each in added:
            # Every other answer is a mistake of these races.
            assert isinstance(each, Added), each
            job_ids.append(each.job.id)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                jobs = await self._store.get(job_ids)
            except StoreUnavailableError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(1)
                continue
            found = [job for job in jobs if job is not None]
            assert len(found) == len(jobs), "a job that was stored is gone"
            return found

    async def _check(self, pair: Pair, job: Job, *, is_pending: bool, until: float) -> None:
        races = self.races
        races.pairs += 1
        if is_pending:
            races.pending += 1
            # Acknowledged while the store took too long: it decides soon.
            if not job.state.is_final:
                with suppress(TimeoutError):
                    job = await self._purgatory.job(job.id).wait(max(until - time.monotonic(), 1.0))
        if job.outcome is not JobOutcome.FIRED or set(job.fired_keys) != set(pair.fired):
            how = "pending" if is_pending else "acknowledged"
            races.missed.append(
                f"{job.id}: {job.outcome} by {job.fired_keys}, not {pair.fired} ({how})"
            )

    async def _prune(self) -> None:
        if self.races.pairs < self._pruned + PRUNE_EVERY:
            return
        self._pruned = self.races.pairs
        with suppress(StoreUnavailableError):
            await self._store.run([Prune(0, KEPT, PRUNE_EVERY), Prune(0, KEPT, PRUNE_EVERY)])
