"""Every store against the model: two processes, any steps in any order, crashes in between."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from purgatory.jobs import Job, JobError, JobLimits, JobOutcome, JobState
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import JobClaim, JobFilter, OnFire
from purgatory.jobs.model.limits import Bounds
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import (
    Added,
    Claim,
    Finish,
    Fire,
    FireJob,
    GiveBack,
    Pause,
    Paused,
    Resume,
    Retry,
    Start,
    WaitAgain,
)
from tests.contract.job_model import JobModel
from tests.contract.job_stores import ContractStore, MakeJobStores
from tests.contract.redis_job_stores import RedisJobStores
from tests.contract.world import World
from tests.nightly import IN_FULL, by_night

pytestmark = IN_FULL

T = TypeVar("T")

KEYS = ["a", "b", "c"]
LEASE_MS = 40
HOUR_MS = 3_600_000
IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
# Where each step is a round trip, fewer.
EXAMPLES = by_night(
    {"memory": 60, "sqlite": 10, "postgresql": 8, "redis": 20, "redis_shards": 8},
    {"memory": 20, "sqlite": 3, "postgresql": 2, "redis": 4, "redis_shards": 2},
)
# Crashes of a process need no rule of their own: a claim, once drawn, may never be used again (its
# worker died), or be used much later (it was suspended); an answer may be lost; and a process may
# be replaced by another between any two steps.
SETTINGS = settings(
    deadline=None,
    stateful_step_count=80 if IS_THOROUGH else 40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

indices = st.integers(0, 50)
delays_ms = st.sampled_from([0, 0, 1, 10, 50, 100])
batches = st.integers(1, 5)
versions = st.sampled_from([None, None, 0, 1])
ALL = ("note", "other", "third")
handlers = st.sampled_from([ALL, ALL, ("note",), ("other",), ("third", "other")])
bounds = st.sampled_from([None, Bounds("note", 2, 1), Bounds("note", 1), Bounds("note", None, 1)])


class JobStoreMachine(RuleBasedStateMachine):
    """Whatever a store answers, the model answers; whatever is stored, the model has."""

    claims = Bundle[JobClaim]("claims")
    specs = Bundle[JobSpec]("specs")

    def __init__(self, make_job_stores: MakeJobStores, *, is_bounded: bool) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.make_job_stores = make_job_stores
        self.is_bounded = is_bounded
        # Jobs go by their ids where times are equal: with made-up ids the same choices would not
        # lead to the same jobs twice, and neither replay nor shrink.
        self.random = random.Random(0)
        # What was said once holds for ever.
        self.outcomes: dict[tuple[str, int], JobOutcome] = {}
        self.over: dict[str, JobState] = {}

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def attempt(self, coroutine: Coroutine[Any, Any, T]) -> T | str:
        try:
            return self.wait(coroutine)
        except JobError as exc:
            return type(exc).__name__

    def store(self, is_here: bool) -> ContractStore:
        return self.world.here if is_here else self.world.there

    def pick(self, index: int) -> str:
        """The id of a job that is there; of none where there is none."""
        ids = sorted(self.model.jobs)
        return ids[index % len(ids)] if ids else "0" * 32

    @initialize(max_batch=st.sampled_from([3, 1_000]))
    def open(self, max_batch: int) -> None:
        self.world = World(self.make_job_stores, JobLimits(max_batch=max_batch))
        self.model = JobModel(
            self.world.limits,
            lambda: self.world.now_ms,
            decides_in_turn=isinstance(self.world.stores, RedisJobStores),
        )
        self.wait(self.world.open())

    # Those who want something done

    @rule(
        target=specs,
        delay_ms=delays_ms,
        keys=st.lists(st.sampled_from(KEYS), max_size=3),
        on_fire=st.sampled_from(["run", "cancel"]),
        dedupe_key=st.sampled_from([None, None, "d", "e"]),
        concurrency_key=st.sampled_from([None, "x", "y"]),
        on_conflict=st.sampled_from(["error", "replace", "keep"]),
        until=st.sampled_from(["any", "any", "all", 2]),
        ceiling=st.sampled_from([None, None, 0.03, 0.2]),
        idempotency_key=st.sampled_from([None, None, "r", "s"]),
        handler=st.sampled_from(["note", "note", "other"]),
        is_here=st.booleans(),
    )
    def add(
        self,
        delay_ms: int,
        keys: list[str],
        on_fire: str,
        dedupe_key: str | None,
        concurrency_key: str | None,
        on_conflict: str,
        until: str | int,
        ceiling: float | None,
        handler: str,
        idempotency_key: str | None,
        is_here: bool,
    ) -> JobSpec:
        """A new job."""
        if until == "all" or len(set(keys)) < 2:
            until = "all" if keys and until == "all" else "any"
        spec = self.world.spec(
            handler,
            payload=len(self.model.jobs),
            delay=delay_ms / 1_000,
            keys=keys,
            on_fire=on_fire if keys else "run",
            dedupe_key=dedupe_key,
            concurrency_key=concurrency_key,
            on_conflict="error" if dedupe_key is None else on_conflict,
            ceiling=ceiling,
            until=until,
            idempotency_key=idempotency_key,
        )
        spec = self.renamed(spec)
        self.add_spec(spec, is_here)
        return spec

    @rule(spec=specs, is_renamed=st.booleans(), is_here=st.booleans())
    def add_again(self, spec: JobSpec, is_renamed: bool, is_here: bool) -> None:
        """The answer was lost, or the job was forgotten since; perhaps by another call."""
        self.add_spec(self.renamed(spec) if is_renamed else spec, is_here)

    def renamed(self, spec: JobSpec) -> JobSpec:
        return replace(spec, id=f"{self.random.getrandbits(128):032x}")

    def add_spec(self, spec: JobSpec, is_here: bool) -> None:
        (added,) = self.wait(self.store(is_here).add([spec]))
        expected = self.model.add(spec, self.world.now_ms)
        assert (added if isinstance(added, Added) else type(added).__name__) == expected

    @rule(key=st.sampled_from(KEYS), limit=batches, number=indices, is_here=st.booleans())
    def fire(self, key: str, limit: int, number: int, is_here: bool) -> None:
        """As many as the limit, of those that nothing has decided."""
        before = {job.id: job for job in self.model.undecided(key)}
        store = self.store(is_here)
        assert not before or store.may_wait_on(key)
        (fired,) = self.wait(store.fire([Fire(key, str(number))], limit=limit))
        ids = [*fired.run, *fired.cancelled, *fired.counted]
        limit = self.world.limits.cut(limit)
        assert len(ids) == len(set(ids)) == min(limit, len(before))
        assert fired.has_more == (len(before) > limit)
        now_ms = self.world.now_ms
        self.model.decide(ids, lambda model, each: model.fire(each, key, str(number), now_ms))
        for job_id in ids:
            job = self.model.jobs[job_id]
            assert (job_id in fired.cancelled) == (job.state is JobState.CANCELLED)
            assert (job_id in fired.counted) == job.is_undecided

    @rule(
        index=indices,
        keys=st.lists(st.sampled_from(KEYS), max_size=4),
        number=indices,
        is_late=st.booleans(),
        is_here=st.booleans(),
    )
    def fire_job(
        self, index: int, keys: list[str], number: int, is_late: bool, is_here: bool
    ) -> None:
        """One job, by what fired before it was stored; another round of it stays as it is."""
        job_id = self.pick(index)
        fired = [(key, str(number)) for key in keys]
        known = self.model.jobs.get(job_id)
        round_number = (0 if known is None else known.round) - is_late
        step = FireJob(job_id, tuple(fired), round_number)
        (job,) = self.wait(self.store(is_here).run([step]))
        assert job == self.model.fire_job(job_id, fired, round_number, self.world.now_ms)

    @rule(index=indices, behind=versions, is_here=st.booleans())
    def cancel(self, index: int, behind: int | None, is_here: bool) -> None:
        """Only what waits."""
        job_id = self.pick(index)
        if_version = self.version(job_id, behind)
        cancelled = self.attempt(self.store(is_here).cancel(job_id, if_version=if_version))
        assert cancelled == self.model.cancel(job_id, if_version, self.world.now_ms)

    @rule(key=st.sampled_from(KEYS), limit=batches)
    def cancel_for_key(self, key: str, limit: int) -> None:
        """As many as the limit, of those that nothing has decided."""
        before = {job.id for job in self.model.undecided(key)}
        done = self.wait(self.world.here.cancel_for_key(key, limit=limit))
        limit = self.world.limits.cut(limit)
        assert set(done.cancelled) <= before
        assert len(done.cancelled) == min(limit, len(before))
        assert (done.run, done.has_more) == ((), len(before) > limit)
        now_ms = self.world.now_ms
        self.model.decide(done.cancelled, lambda model, each: model.cancel(each, None, now_ms))

    @rule(index=indices, delay_ms=delays_ms, behind=versions, is_here=st.booleans())
    def reschedule(self, index: int, delay_ms: int, behind: int | None, is_here: bool) -> None:
        """Only what nothing has decided."""
        job_id = self.pick(index)
        if_version = self.version(job_id, behind)
        deadline = Deadline(delay_ms=delay_ms)
        store = self.store(is_here)
        moved = self.attempt(store.reschedule(job_id, deadline, if_version=if_version))
        assert moved == self.model.reschedule(job_id, deadline, if_version, self.world.now_ms)

    @rule(index=indices, behind=versions, is_here=st.booleans())
    def run_now(self, index: int, behind: int | None, is_here: bool) -> None:
        """Only what waits."""
        job_id = self.pick(index)
        if_version = self.version(job_id, behind)
        job = self.attempt(self.store(is_here).run_now(job_id, if_version=if_version))
        assert job == self.model.run_now(job_id, if_version, self.world.now_ms)

    @rule(index=indices, behind=versions, is_here=st.booleans())
    def retry(self, index: int, behind: int | None, is_here: bool) -> None:
        """Only what has failed; then it is not over."""
        job_id = self.pick(index)
        if_version = self.version(job_id, behind)
        (result,) = self.wait(self.store(is_here).run([Retry(job_id, if_version=if_version)]))
        job = type(result).__name__ if isinstance(result, JobError) else result
        assert job == self.model.retry(job_id, if_version, self.world.now_ms)
        if isinstance(job, Job):
            del self.over[job_id]

    @rule(handler=st.sampled_from([None, "note", "note", "other"]))
    def pause(self, handler: str | None) -> None:
        """One handler, or all of them."""
        self.wait(self.world.there.run([Pause(handler)]))
        self.model.paused.add(handler)

    @rule(handler=st.sampled_from([None, "note", "other"]))
    def resume(self, handler: str | None) -> None:
        """What is paused by its name and with all others is resumed by both."""
        resumed = 0
        while (number := self.wait(self.world.here.run([Resume(handler, 1_000)]))[0]) > 0:
            resumed += number
        assert resumed == self.model.resume(handler)

    def version(self, job_id: str, behind: int | None) -> int | None:
        job = self.model.jobs.get(job_id)
        return None if job is None or behind is None else job.version - behind

    # Those who run jobs

    @rule(
        target=claims,
        within_ms=st.sampled_from([0, 20, 1_000]),
        limit=batches,
        is_here=st.booleans(),
        is_answer_lost=st.sampled_from([False, False, False, True]),
        bounds=bounds,
        handlers=handlers,
    )
    def claim(
        self,
        within_ms: int,
        limit: int,
        is_here: bool,
        is_answer_lost: bool,
        bounds: Bounds | None,
        handlers: tuple[str, ...],
    ) -> Any:
        """In order, past those of other handlers; a lost answer is a worker that died at once."""
        worker, lease_ms = "here" if is_here else "there", LEASE_MS
        if not self.is_bounded or handlers not in (ALL, ("note",)):
            bounds = None
        options: dict[str, Any] = {"within_ms": within_ms, "lease_ms": lease_ms}
        options["handlers"] = handlers

        def claim(limit: int) -> tuple[list[Job], bool]:
            several = () if bounds is None else (bounds,)
            step = Claim(worker, limit=limit, bounds=several, **options)
            [claimed] = self.wait(self.store(is_here).run([step]))
            assert claimed.now_ms == self.world.now_ms
            return claimed.jobs, claimed.is_cut

        def expect(limit: int) -> tuple[list[Job], bool]:
            now_ms = self.world.now_ms
            return self.model.claim(worker, limit=limit, now_ms=now_ms, bounds=bounds, **options)

        limit = self.world.limits.cut(limit)
        jobs = all_of(claim, limit)
        assert jobs == all_of(expect, limit)
        return multiple() if is_answer_lost else multiple(*(job.claim for job in jobs))

    @rule(claim=claims, is_here=st.booleans())
    def renew(self, claim: JobClaim, is_here: bool) -> None:
        """By whoever holds it, or held it."""
        lost = self.wait(self.store(is_here).renew([claim], lease_ms=LEASE_MS))
        assert lost == self.model.renew(claim, LEASE_MS, self.world.now_ms)

    @rule(
        several=st.lists(claims, min_size=1, max_size=3),
        is_here=st.booleans(),
        attempt=st.sampled_from([None, None, 1, 2]),
        bounds=bounds,
    )
    def start(
        self, several: list[JobClaim], is_here: bool, attempt: int | None, bounds: Bounds | None
    ) -> None:
        """In time; never once it was cancelled."""
        bounds = bounds if self.is_bounded else None
        first = self.model.jobs.get(several[0].id)
        if bounds is not None and (first is None or first.handler != bounds.handler):
            bounds = None
        if bounds is not None:
            # Of several in one transaction, slots that are left are handed over at its end.
            several = several[:1]
        options: dict[str, Any] = {"lease_ms": LEASE_MS, "attempt": attempt, "bounds": bounds}
        steps = [Start(claim, **options) for claim in several]
        started = self.wait(self.store(is_here).run(steps))
        now_ms = self.world.now_ms
        assert started == [self.model.start(claim, now_ms=now_ms, **options) for claim in several]
        for job in started:
            if job is not None and job.state is JobState.RUNNING:
                assert job.id not in self.over
                assert job.due_ms <= now_ms

    @rule(
        claim=claims,
        state=st.sampled_from([JobState.DONE, JobState.FAILED]),
        error=st.sampled_from([None, "boom"]),
        is_here=st.booleans(),
    )
    def finish(self, claim: JobClaim, state: JobState, error: str | None, is_here: bool) -> None:
        """Once."""
        result = Finish(claim, state, error)
        (is_finished,) = self.wait(self.store(is_here).finish([result]))
        assert is_finished == self.model.finish(result, self.world.now_ms)

    @rule(claim=claims, is_here=st.booleans())
    def miss(self, claim: JobClaim, is_here: bool) -> None:
        """Only what nothing has decided."""
        (is_missed,) = self.wait(self.store(is_here).miss([claim]))
        assert is_missed == self.model.miss(claim, self.world.now_ms)

    @rule(
        claim=claims,
        delay_ms=st.none() | delays_ms,
        error=st.sampled_from([None, "again"]),
        hold_ms=st.sampled_from([None, None, 1, 50]),
        is_here=st.booleans(),
    )
    def give_back(
        self,
        claim: JobClaim,
        delay_ms: int | None,
        error: str | None,
        hold_ms: int | None,
        is_here: bool,
    ) -> None:
        """To be tried again, spread, left alone for a while, or run by another."""
        given = GiveBack(claim, delay_ms, error, hold_ms)
        (is_done,) = self.wait(self.store(is_here).give_back([given]))
        assert is_done == self.model.give_back(given, self.world.now_ms)

    @rule(
        claim=claims,
        delay_ms=delays_ms,
        keys=st.lists(st.sampled_from(KEYS), max_size=3, unique=True),
        is_all=st.booleans(),
        on_fire=st.sampled_from(OnFire),
        payload_json=st.sampled_from([None, "[1]"]),
        is_here=st.booleans(),
    )
    def wait_again(
        self,
        claim: JobClaim,
        delay_ms: int,
        keys: list[str],
        is_all: bool,
        on_fire: OnFire,
        payload_json: str | None,
        is_here: bool,
    ) -> None:
        """As a new job under the same id, unless another has its dedupe key."""
        needed = len(keys) if is_all and keys else 1
        deadline = Deadline(delay_ms=delay_ms)
        step = WaitAgain(claim, deadline, tuple(keys), needed, on_fire, payload_json)
        (job,) = self.wait(self.store(is_here).run([step]))
        assert job == self.model.wait_again(step, self.world.now_ms)

    # Whatever else happens

    @rule(ms=st.sampled_from([1, 5, LEASE_MS, 200, -200, -HOUR_MS, HOUR_MS]))
    def pass_time(self, ms: int) -> None:
        """Deadlines come, leases run out; the clock may be set."""
        self.world.now_ms += ms

    @rule()
    def restart(self) -> None:
        """A process ends, and another takes its slot."""
        self.wait(self.world.restart_here())

    @precondition(lambda self: any(job.state.is_final for job in self.model.jobs.values()))
    @rule(age_ms=st.sampled_from([0, 50]), keep=st.sampled_from([1, 100]), limit=batches)
    def prune(self, age_ms: int, keep: int, limit: int) -> None:
        """The earliest finished first."""
        before_ms = self.world.now_ms - age_ms
        before = self.model.jobs.copy()
        gone = self.wait(
            self.world.here.prune(finished_before_ms=before_ms, keep=keep, limit=limit)
        )
        assert gone == self.model.prune(before_ms, keep, self.world.limits.cut(limit))
        for job_id in before.keys() - self.model.jobs.keys():
            # Added again, it is another job.
            for known in [each for each in self.outcomes if each[0] == job_id]:
                del self.outcomes[known]
            self.over.pop(job_id, None)

    # Invariants

    @invariant()
    def both_processes_see_what_the_model_has(self) -> None:
        ids = list(self.model.jobs)
        assert self.wait(self.world.here.get(ids)) == list(self.model.jobs.values())
        assert self.wait(self.world.there.get(ids)) == list(self.model.jobs.values())
        assert self.wait(self.world.there.counts()) == self.model.counts()
        for handlers in (None, ["note"], ["third", "other"]):
            next_due_ms = self.wait(self.world.there.next_due_ms(handlers))
            assert next_due_ms == self.model.next_due_ms(self.world.now_ms, handlers)

    @invariant()
    def what_is_paused_and_counted_by_handler_is_the_models(self) -> None:
        paused = self.model.paused
        count = sum(job.blocked_by == "paused" for job in self.model.jobs.values())
        expected = Paused(tuple(sorted(filter(None, paused))), None in paused, count)
        assert self.wait(self.world.here.paused()) == expected
        assert self.wait(self.world.here.handler_counts()) == self.model.handler_counts()

    @invariant()
    def every_job_is_on_the_pages_of_its_key(self) -> None:
        for where in (
            JobFilter(key="a"),
            JobFilter(key="a", handler="note"),
            JobFilter(key="b", state=JobState.CANCELLED),
            JobFilter(concurrency_key="x"),
            JobFilter(concurrency_key="x", handler="other"),
            JobFilter(state=JobState.WAITING),
            JobFilter(is_blocked=True),
            JobFilter(handler="note", is_blocked=True),
        ):
            expected = sorted(job.id for job in self.model.jobs.values() if where.matches(job))
            assert [job.id for job in self.wait(self.pages(where))] == expected[::-1]

    async def pages(self, where: JobFilter) -> list[Job]:
        page = await self.world.here.query(where, limit=1_000)
        found = page.jobs
        while page.next is not None:
            page = await self.world.here.query(where, after=page.next, limit=1_000)
            found += page.jobs
        return found

    @invariant()
    def slots_are_handed_over(self) -> None:
        """A job that waits for a slot is behind one that has it.

        If it waits because of its key, behind one of that, which may wait for any slot itself.
        """
        jobs = self.model.jobs.values()
        queued = {
            (job.handler, job.concurrency_key) for job in jobs if job.blocked_by == "max_running"
        }
        for job in jobs:
            if job.blocked_by not in (None, "paused"):
                assert self.model.taken(job, has_key=False) > 0
            if job.blocked_by == "max_running_per_key":
                is_behind_queued = (job.handler, job.concurrency_key) in queued
                assert is_behind_queued or self.model.taken(job, has_key=True) > 0

    @invariant()
    def an_outcome_is_recorded_once(self) -> None:
        for job in self.model.jobs.values():
            self.check(job)
            if job.outcome is not None:
                recorded = self.outcomes.setdefault((job.id, job.round), job.outcome)
                assert recorded is job.outcome
            if job.state.is_final:
                assert self.over.setdefault(job.id, job.state) is job.state

    def check(self, job: Job) -> None:
        """The invariants that `Job` states."""
        assert job.state.is_final == (job.finished_ms is not None)
        if job.state in (JobState.RUNNING, JobState.DONE, JobState.FAILED):
            assert job.outcome in (JobOutcome.FIRED, JobOutcome.EXPIRED) and job.attempt >= 1
        if job.state is JobState.CANCELLED:
            assert job.outcome is not None
        is_fired = job.outcome is JobOutcome.FIRED
        assert is_fired == (job.fired_key is not None) == (job.fired_json is not None)
        assert job.ceiling_ms is None or job.deadline_ms <= job.ceiling_ms
        # Counted once each, and never enough without a decision.
        assert len(set(job.fired_before)) == len(job.fired_before) < job.needed
        assert set(job.fired_before) <= set(job.keys)

    def teardown(self) -> None:
        self.wait(self.world.close())
        self.runner.close()


def all_of(claim: Callable[[int], tuple[list[Job], bool]], limit: int) -> list[Job]:
    """What claims return until there are `limit` jobs, or no others were in the way."""
    jobs: list[Job] = []
    is_cut = True
    while is_cut and len(jobs) < limit:
        found, is_cut = claim(limit - len(jobs))
        jobs += found
    return jobs


def test_a_store_does_what_the_model_does(
    make_job_stores: MakeJobStores, request: pytest.FixtureRequest
) -> None:
    """Whatever two processes do to it, in whatever order, wherever they die."""
    name = request.node.callspec.params["make_job_stores"]
    examples = EXAMPLES[name]
    # Each shard counts its own slots.
    is_bounded = name != "redis_shards"
    run_state_machine_as_test(
        lambda: JobStoreMachine(make_job_stores, is_bounded=is_bounded),  # type: ignore[arg-type]  # it calls it only
        settings=settings(SETTINGS, max_examples=examples * (16 if IS_THOROUGH else 1)),
    )
