"""Every store against the model: two processes, any steps in any order, crashes in between."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Coroutine
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

from purgatory.jobs import Job, JobError, JobOutcome, JobState
from purgatory.jobs.model import (
    Added,
    Deadline,
    Finish,
    Fire,
    GiveBack,
    JobClaim,
    JobFilter,
    JobSpec,
)
from tests.contract.job_model import JobModel
from tests.contract.job_stores import ContractStore, MakeJobStores
from tests.contract.world import World

T = TypeVar("T")

KEYS = ["a", "b", "c"]
LEASE_MS = 40
IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
# Where each step is a round trip, fewer.
EXAMPLES = {"memory": 60, "sqlite": 10, "postgresql": 8, "redis": 20, "redis_shards": 8}
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


class JobStoreMachine(RuleBasedStateMachine):
    """Whatever a store answers, the model answers; whatever is stored, the model has."""

    claims = Bundle[JobClaim]("claims")
    specs = Bundle[JobSpec]("specs")

    def __init__(self, make_job_stores: MakeJobStores) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.world = World(make_job_stores)
        self.model = JobModel(self.world.limits)
        # Jobs go by their ids where times are equal: with made-up ids the same choices would not
        # lead to the same jobs twice, and neither replay nor shrink.
        self.random = random.Random(0)
        # What was said once holds for ever.
        self.outcomes: dict[str, JobOutcome] = {}
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

    @initialize()
    def open(self) -> None:
        self.wait(self.world.open())

    # Those who want something done

    @rule(
        target=specs,
        delay_ms=delays_ms,
        keys=st.lists(st.sampled_from(KEYS), max_size=3),
        on_fire=st.sampled_from(["run", "cancel"]),
        dedupe_key=st.sampled_from([None, None, "d", "e"]),
        on_conflict=st.sampled_from(["error", "replace", "keep"]),
        ceiling=st.sampled_from([None, None, 0.03, 0.2]),
        is_here=st.booleans(),
    )
    def add(
        self,
        delay_ms: int,
        keys: list[str],
        on_fire: str,
        dedupe_key: str | None,
        on_conflict: str,
        ceiling: float | None,
        is_here: bool,
    ) -> JobSpec:
        """A new job."""
        spec = self.world.spec(
            payload=len(self.model.jobs),
            delay=delay_ms / 1_000,
            keys=keys,
            on_fire=on_fire,
            dedupe_key=dedupe_key,
            on_conflict="error" if dedupe_key is None else on_conflict,
            ceiling=ceiling,
        )
        spec = replace(spec, id=f"{self.random.getrandbits(128):032x}")
        self.add_spec(spec, is_here)
        return spec

    @rule(spec=specs, is_here=st.booleans())
    def add_again(self, spec: JobSpec, is_here: bool) -> None:
        """The answer was lost, or the job was forgotten since."""
        self.add_spec(spec, is_here)

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
        ids = [*fired.run, *fired.cancelled]
        assert len(ids) == len(set(ids)) == min(limit, len(before))
        assert fired.has_more == (len(before) > limit)
        for job_id in ids:
            job = self.model.fire(job_id, key, str(number), self.world.now_ms)
            assert (job_id in fired.cancelled) == (job.state is JobState.CANCELLED)

    @rule(index=indices, is_here=st.booleans())
    def cancel(self, index: int, is_here: bool) -> None:
        """Only what waits."""
        job_id = self.pick(index)
        cancelled = self.attempt(self.store(is_here).cancel(job_id))
        assert cancelled == self.model.cancel(job_id, self.world.now_ms)

    @rule(key=st.sampled_from(KEYS), limit=batches)
    def cancel_for_key(self, key: str, limit: int) -> None:
        """As many as the limit, of those that nothing has decided."""
        before = {job.id for job in self.model.undecided(key)}
        done = self.wait(self.world.here.cancel_for_key(key, limit=limit))
        assert set(done.cancelled) <= before
        assert len(done.cancelled) == min(limit, len(before))
        assert (done.run, done.has_more) == ((), len(before) > limit)
        for job_id in done.cancelled:
            self.model.cancel(job_id, self.world.now_ms)

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
    )
    def claim(self, within_ms: int, limit: int, is_here: bool, is_answer_lost: bool) -> Any:
        """In order; a lost answer is a worker that died at once."""
        options: dict[str, int] = {"within_ms": within_ms, "limit": limit, "lease_ms": LEASE_MS}
        worker = "here" if is_here else "there"
        claimed = self.wait(self.store(is_here).claim(worker, **options))
        assert claimed.now_ms == self.world.now_ms
        assert claimed.jobs == self.model.claim(worker, **options, now_ms=self.world.now_ms)
        return multiple() if is_answer_lost else multiple(*(job.claim for job in claimed.jobs))

    @rule(claim=claims, is_here=st.booleans())
    def renew(self, claim: JobClaim, is_here: bool) -> None:
        """By whoever holds it, or held it."""
        lost = self.wait(self.store(is_here).renew([claim], lease_ms=LEASE_MS))
        assert lost == self.model.renew(claim, LEASE_MS, self.world.now_ms)

    @rule(
        several=st.lists(claims, min_size=1, max_size=3),
        is_here=st.booleans(),
        attempt=st.sampled_from([None, None, 1, 2]),
    )
    def start(self, several: list[JobClaim], is_here: bool, attempt: int | None) -> None:
        """In time; never once it was cancelled."""
        options: dict[str, Any] = {"lease_ms": LEASE_MS, "attempt": attempt}
        started = self.wait(self.store(is_here).start(several, **options))
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
        is_here=st.booleans(),
    )
    def give_back(
        self, claim: JobClaim, delay_ms: int | None, error: str | None, is_here: bool
    ) -> None:
        """To be tried again, spread, or run by another."""
        given = GiveBack(claim, delay_ms, error)
        (is_done,) = self.wait(self.store(is_here).give_back([given]))
        assert is_done == self.model.give_back(given, self.world.now_ms)

    # Whatever else happens

    @rule(ms=st.sampled_from([1, 5, LEASE_MS, 200]))
    def pass_time(self, ms: int) -> None:
        """Deadlines come, leases run out."""
        self.world.now_ms += ms

    @rule()
    def restart(self) -> None:
        """A process ends, and another takes its place."""
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
        assert gone == self.model.prune(before_ms, keep, limit)
        for job_id in before.keys() - self.model.jobs.keys():
            # Added again, it is another job.
            self.outcomes.pop(job_id, None)
            self.over.pop(job_id, None)

    # Invariants

    @invariant()
    def both_processes_see_what_the_model_has(self) -> None:
        ids = list(self.model.jobs)
        assert self.wait(self.world.here.get(ids)) == list(self.model.jobs.values())
        assert self.wait(self.world.there.get(ids)) == list(self.model.jobs.values())
        assert self.wait(self.world.there.counts()) == self.model.counts()
        next_due_ms = self.wait(self.world.there.next_due_ms())
        assert next_due_ms == self.model.next_due_ms(self.world.now_ms)

    @invariant()
    def every_job_is_on_the_page_of_its_key(self) -> None:
        for where in (JobFilter(key="a"), JobFilter(state=JobState.WAITING)):
            page = self.wait(self.world.here.query(where, limit=1_000))
            found = sorted(job.id for job in self.model.jobs.values() if where.matches(job))
            assert [job.id for job in page.jobs] == found[::-1]

    @invariant()
    def an_outcome_is_recorded_once(self) -> None:
        for job in self.model.jobs.values():
            self.check(job)
            if job.outcome is not None:
                assert self.outcomes.setdefault(job.id, job.outcome) is job.outcome
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

    def teardown(self) -> None:
        self.wait(self.world.close())
        self.runner.close()


def test_a_store_does_what_the_model_does(
    make_job_stores: MakeJobStores, request: pytest.FixtureRequest
) -> None:
    """Whatever two processes do to it, in whatever order, wherever they die."""
    examples = EXAMPLES[request.node.callspec.params["make_job_stores"]]
    run_state_machine_as_test(
        lambda: JobStoreMachine(make_job_stores),  # type: ignore[arg-type]  # it calls it only
        settings=settings(SETTINGS, max_examples=examples * (16 if IS_THOROUGH else 1)),
    )
