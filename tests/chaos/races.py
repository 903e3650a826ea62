"""Pairs of defer and fire at the same time: `python -m tests.chaos.races` is the long form."""

from __future__ import annotations

import argparse
import asyncio
import functools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from purgatory import FireResult, Limits, Purgatory
from purgatory.errors import SignalsUnavailableError
from purgatory.jobs import (
    JobOutcome,
    JobsNotFiredError,
    JobStore,
    MemoryJobStore,
    StoreUnavailableError,
)
from purgatory.jobs.model import Prune
from purgatory.jobs.sql import migrate
from purgatory.signals.redis import RedisSignals
from tests.chaos.machines import Machine, PostgresMachine, SqliteMachine, ValkeyMachine
from tests.chaos.service import make_store
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer

REFUSALS = (SignalsUnavailableError, StoreUnavailableError, JobsNotFiredError)
MACHINES: dict[str, Any] = {
    "sqlite": SqliteMachine,
    "postgresql": PostgresMachine,
    "valkey": ValkeyMachine,
}
KINDS = ["memory", *sorted(MACHINES)]
AT_ONCE = 64
# In the long form: stores share a transaction or a round trip between what is asked at once.
MANY_AT_ONCE = 512
SAY_EVERY = 10_000
PRUNE_EVERY = 1_000
# More than are waited for at any time.
KEPT = 5_000
# By how much the fires of the next pairs are earlier or later than those of a pair.
STEP = 1.02
SHORTEST_S, LONGEST_S = 0.0001, 2.0


@dataclass
class Races:
    """What came of them: none may be missed."""

    pairs: int = 0
    missed: list[str] = field(default_factory=list)
    refused: int = 0
    """Others, of which the defer or a fire raised that the store or the signals are away."""
    by_the_fire: int = 0
    """Pairs whose job the fire found in the store; the history had the others."""
    seconds: float = 0.0
    conditions: Counter[str] = field(default_factory=Counter)


class Racers:
    """Two purgatories, as two processes have them; with a store in memory, twice the same."""

    def __init__(
        self, purgatories: list[Purgatory], chance: random.Random, round_trip_s: float
    ) -> None:
        self._purgatories = purgatories
        self._chance = chance
        # So that either may be first: with this many at once, a defer takes about so long. Followed
        # as the pairs go by, as that depends on the machine and on what else it does.
        self._defer_s = self._fire_s = round_trip_s
        self.races = Races()

    async def race(self, number: int, *, has_cursor: bool) -> None:
        """Defer a job on keys that fire at the same time; note whether that decided it."""
        chance = self._chance
        here, there = chance.sample(self._purgatories, 2)
        keys = [f"{number}:{each}" for each in range(chance.choice([1, 1, 1, 2, 3]))]
        needed = chance.randint(1, len(keys))
        # Some of the keys fire, as many as are needed, each from one of the two.
        fired = chance.sample(keys, needed)
        since = here.cursor(*keys) if has_cursor else None
        share = chance.choice([0.0, 0.1, 1.0, 2.0])
        pauses = [chance.uniform(0, share * self._fire_s) for _ in fired]
        defer_pause = chance.uniform(0, share * self._defer_s)

        async def defer() -> str:
            await asyncio.sleep(defer_pause)
            handle = await here.defer(
                "none", delay=3_600, keys=keys, until=needed, since=since, on_fire="cancel"
            )
            return handle.id

        async def fire(key: str, pause: float, purgatory: Purgatory) -> FireResult:
            await asyncio.sleep(pause)
            return await purgatory.fire(key, number)

        firing = [
            asyncio.create_task(fire(key, pause, chance.choice([here, there])))
            for key, pause in zip(fired, pauses, strict=False)
        ]
        try:
            job_id = await defer()
            decided = await asyncio.gather(*firing)
            job = await there.job(job_id).get()
            if not job.state.is_final and any(each.jobs_pending for each in decided):
                # Acknowledged while the store did not answer: it decides soon.
                job = await there.job(job_id).wait(PATIENCE_S)
        except TimeoutError as exc:
            self.races.missed.append(f"{number}: {exc}")
            return
        except REFUSALS:
            # On a machine that is far too busy: nothing was promised, or it cannot be read.
            await asyncio.gather(*firing, return_exceptions=True)
            self.races.refused += 1
            return
        races = self.races
        races.pairs += 1
        by_the_fire = sum(each.jobs for each in decided)
        races.by_the_fire += by_the_fire
        self._approach(is_fire_late=bool(by_the_fire))
        races.conditions[f"{needed} of {len(keys)}"] += 1
        if job.outcome is not JobOutcome.FIRED or set(job.fired_keys) != set(fired):
            races.missed.append(f"{number}: {job.outcome} by {job.fired_keys}, not {fired}")

    def _approach(self, *, is_fire_late: bool) -> None:
        """Let the next pairs meet closer: half of them should go one way, half the other."""
        if is_fire_late:
            self._fire_s = max(self._fire_s / STEP, SHORTEST_S)
            self._defer_s = min(self._defer_s * STEP, LONGEST_S)
        else:
            self._fire_s = min(self._fire_s * STEP, LONGEST_S)
            self._defer_s = max(self._defer_s / STEP, SHORTEST_S)


async def run_races(
    kind: str,
    pairs: int,
    folder: Path,
    *,
    seed: int = 1,
    has_cursor: bool = True,
    at_once: int = AT_ONCE,
    say: Callable[[Races], object] = lambda races: None,
) -> Races:
    """Run pairs on a new store of a kind, `at_once` at a time; `say` how it goes."""
    async with _opened(kind, folder) as (purgatories, store):
        round_trip_s = 0.0005 if kind == "memory" else 0.05
        racers = Racers(purgatories, random.Random(seed), round_trip_s)
        numbers = iter(range(pairs))
        begun = time.monotonic()

        async def work() -> None:
            for number in numbers:
                await racers.race(number, has_cursor=has_cursor)
                if number % PRUNE_EVERY == PRUNE_EVERY - 1:
                    await store.run([Prune(0, KEPT, 1_000), Prune(0, KEPT, 1_000)])
                if racers.races.pairs % SAY_EVERY == 0:
                    racers.races.seconds = time.monotonic() - begun
                    say(racers.races)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, pairs)):
                group.create_task(work())
        racers.races.seconds = time.monotonic() - begun
    return racers.races


@asynccontextmanager
async def _opened(kind: str, folder: Path) -> AsyncIterator[tuple[list[Purgatory], JobStore]]:
    async with AsyncExitStack() as stack:
        if kind == "memory":
            store: JobStore = MemoryJobStore()
            one = await stack.enter_async_context(_purgatory(store, None))
            yield [one, one], store
            return
        machine: Machine = MACHINES[kind](folder)
        machine.start()
        stack.callback(machine.close)
        if kind != "valkey":
            await migrate(machine.url)
        (folder / "signals").mkdir()
        signals = stack.enter_context(ValkeyServer(folder / "signals"))
        stores = [make_store(machine.url) for _ in range(2)]
        purgatories = [
            await stack.enter_async_context(_purgatory(store, RedisSignals(signals.url)))
            for store in stores
        ]
        yield purgatories, stores[0]


def _purgatory(store: JobStore, signals: RedisSignals | None) -> Purgatory:
    limits = Limits(max_signals=100_000)
    purgatory = Purgatory("races", jobs=store, signals=signals, limits=limits)
    purgatory.handled_elsewhere(["none"])
    return purgatory


def main() -> int:
    """Race on each store, and say what was missed; 1 if anything was."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.races", description=__doc__)
    parser.add_argument("--store", action="append", choices=KINDS, help="only this one")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=MANY_AT_ONCE)
    parser.add_argument(
        "--without-cursor", action="store_true", help="show how many are missed without `since`"
    )
    options = parser.parse_args()
    missed = 0
    for kind in options.store or KINDS:
        with tempfile.TemporaryDirectory(prefix="purgatory-races-") as folder:
            races = asyncio.run(
                run_races(
                    kind,
                    options.pairs,
                    Path(folder),
                    seed=options.seed,
                    has_cursor=not options.without_cursor,
                    at_once=options.at_once,
                    say=functools.partial(say, kind),
                )
            )
        say(kind, races)
        missed += len(races.missed)
    return 1 if missed else 0


def say(kind: str, races: Races) -> None:
    """Print what came of the races so far."""
    sys.stdout.write(
        f"{kind}: {races.pairs} pairs in {races.seconds:.0f} s, {races.by_the_fire} decided by "
        f"the fire, {races.refused} refused, {len(races.missed)} missed\n"
    )
    sys.stdout.writelines(f"  {each}\n" for each in races.missed[:5])
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
