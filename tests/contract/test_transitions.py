"""The table of transitions: every store does what it says, for each step and each phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from purgatory.jobs import Job, JobError, JobState
from purgatory.jobs.model import steps as model_steps
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import JobClaim, OnFire
from purgatory.jobs.model.limits import Bounds
from purgatory.jobs.model.steps import (
    Add,
    Added,
    AddStatus,
    Cancel,
    CancelForKey,
    Claim,
    Finish,
    Fire,
    FireJob,
    GiveBack,
    HolderStep,
    JobStep,
    KeyFired,
    KeyStep,
    Miss,
    Pause,
    Prune,
    Renew,
    Reschedule,
    Resume,
    Retry,
    RunNow,
    Start,
    Step,
    VersionedStep,
    WaitAgain,
)
from purgatory.jobs.model.transitions import TRANSITIONS, Phase, applied, changed_by
from tests.cases import cases
from tests.contract.world import LEASE_MS, World
from tests.step_methods import HANDLERS

HELD_PHASES = (Phase.UNDECIDED, Phase.DECIDED, Phase.RUNNING)
ROOMY = Bounds("note", 30_000, 1_000)
OF_HOLDER: dict[type[Step[Any]], Callable[[JobClaim], HolderStep[Any]]] = {
    Start: lambda claim: Start(
        claim, LEASE_MS, 7 if claim.epoch % 2 else None, ROOMY if claim.epoch % 2 else None
    ),
    Renew: lambda claim: Renew(claim, 2 * LEASE_MS),
    Finish: lambda claim: Finish(claim, JobState.FAILED, "boom"),
    Miss: Miss,
    GiveBack: lambda claim: GiveBack(claim, 500, "again"),
    WaitAgain: lambda claim: WaitAgain(
        claim,
        Deadline(delay_ms=900),
        ("first", f"{claim.id}-2"),
        2,
        OnFire.CANCEL,
        "[1]" if claim.epoch % 2 else None,
    ),
}
VERSIONED: dict[type[Step[Any]], Callable[[str, int | None], VersionedStep]] = {
    Cancel: lambda job_id, version: Cancel(job_id, if_version=version),
    Reschedule: lambda job_id, version: Reschedule(
        job_id, Deadline(delay_ms=700), if_version=version
    ),
    Retry: lambda job_id, version: Retry(job_id, if_version=version),
    RunNow: lambda job_id, version: RunNow(job_id, if_version=version),
}


def test_the_table_is_whole() -> None:
    """Each step on jobs has a transition for each phase; the others have tests of their own."""
    found = {kind for kind in vars(model_steps).values() if isinstance(kind, type)}
    kinds = {kind for kind in found if issubclass(kind, Step)}
    abstract = {Step, KeyStep, JobStep, VersionedStep, HolderStep}
    assert set(TRANSITIONS) == kinds - abstract - {Prune, Pause, Resume}
    assert all(set(row) == set(Phase) for row in TRANSITIONS.values())


@pytest.mark.parametrize("kind", [*OF_HOLDER, *VERSIONED, FireJob])
async def test_a_step_on_one_job(world: World, kind: type[Step[Any]]) -> None:
    """With a claim that is good or lost, at any version, the current one or another."""
    for phase, is_held in _situations():
        for variant in range(3):
            job = await _job(world, phase, is_held=is_held, needed=1 + variant % 2)
            step = _step_on(kind, job, variant)
            expected, result = applied(step, job, world.now_ms, world.limits)
            [found] = await world.here.run([step])
            told = f"{step} on a job that is {phase}, held: {is_held}"
            assert _shown(found) == _shown(result), told
            assert await world.job(job.id) == expected, told


@cases("kind", [*OF_HOLDER, *VERSIONED, FireJob])
async def test_a_step_on_a_job_that_is_not_stored(world: World, kind: type[Step[Any]]) -> None:
    """It is refused, or its claim is lost."""
    job = world.spec().job(world.now_ms, world.now_ms)
    step = _step_on(kind, job, 0)
    _, result = applied(step, None, world.now_ms, world.limits)
    assert [_shown(found) for found in await world.here.run([step])] == [_shown(result)]


@cases("kind", [Fire, CancelForKey])
async def test_a_step_on_the_jobs_on_a_key(world: World, kind: type[Step[Any]]) -> None:
    """Only an undecided job is still on its keys."""
    for phase, is_held in _situations():
        for on_fire, needed in (("run", 1), ("cancel", 1), ("run", 2), ("cancel", 2)):
            job = await _job(world, phase, is_held=is_held, on_fire=on_fire, needed=needed)
            for key in (job.keys[0], job.keys[0], job.keys[1]):
                step = Fire(key, "1") if kind is Fire else CancelForKey(key)
                expected = job
                if job.waits_on(key):
                    expected = changed_by(step, job, world.now_ms, world.limits)
                decided = [] if expected is job else [expected]
                assert await world.here.run([step]) == [KeyFired.of(decided, has_more=False)]
                assert await world.job(job.id) == expected
                job = expected


async def test_a_claim(world: World) -> None:
    """Jobs that wait or run, once their lease has run out."""
    for phase, is_held in _situations():
        job = await _job(world, phase, is_held=is_held)
        world.now_ms += 600_000
        step = Claim("w2", within_ms=0, limit=1_000, lease_ms=LEASE_MS, handlers=HANDLERS)
        expected = changed_by(step, job, world.now_ms, world.limits)
        [claimed] = await world.here.run([step])
        taken = [each for each in claimed.jobs if each.id == job.id]
        assert taken == ([] if expected is job else [expected])
        assert await world.job(job.id) == expected


@cases("on_conflict", ["error", "keep", "replace"])
async def test_adding_a_job_whose_dedupe_key_is_known(world: World, on_conflict: str) -> None:
    """Only an undecided job still has its dedupe key."""
    for phase, is_held in _situations():
        job = await _job(world, phase, is_held=is_held)
        spec = world.spec(
            "other", 2, "0f", delay=3, keys=["new"], dedupe_key=job.dedupe_key,
            on_conflict=on_conflict,
        )  # fmt: skip
        step = Add(spec)
        expected: Job | JobError
        try:
            expected = changed_by(step, job, world.now_ms, world.limits)
        except JobError as exc:
            expected = exc
        [added] = await world.here.run([step])
        if phase is not Phase.UNDECIDED:
            assert expected is job
            assert isinstance(added, Added) and added.status is AddStatus.ADDED
        elif isinstance(expected, JobError):
            assert _shown(added) == _shown(expected)
        else:
            status = AddStatus.KEPT if expected is job else AddStatus.REPLACED
            assert added == Added(expected, status)
        assert await world.job(job.id) == (job if isinstance(expected, JobError) else expected)


async def test_steps_of_several_kinds_are_run_in_order(world: World) -> None:
    """In one call, with a result for each."""
    spec, other = world.spec(delay=5), world.spec(delay=0)
    steps: list[Step[Any]] = [Add(spec), Cancel(spec.id), RunNow(spec.id), Add(other)]
    added, cancelled, refused, last = await world.here.run(steps)
    assert (added.status, last.status) == (AddStatus.ADDED, AddStatus.ADDED)
    assert cancelled.state is JobState.CANCELLED and isinstance(refused, JobError)
    assert await world.here.run([]) == []


async def test_a_fire_of_an_earlier_round(world: World) -> None:
    """A step that is done late, such as after its store hung, decides no later wait of the job."""
    job = await world.run(keys=["k"], on_fire="cancel")
    late = FireJob(job.id, (("k", "1"),), job.round)
    deadline = Deadline(delay_ms=900)
    again = WaitAgain(job.claim, deadline, ("k",), 1, OnFire.CANCEL, None)
    [waiting] = await world.here.run([again])
    assert waiting is not None and waiting.round == 1
    assert await world.there.run([late]) == [waiting]
    [fired] = await world.there.run([FireJob(job.id, (("k", "1"),), 1)])
    assert fired is not None and fired.state is JobState.CANCELLED


def _situations() -> Iterator[tuple[Phase, bool]]:
    for phase in Phase:
        if phase is not Phase.RUNNING:
            yield phase, False
        if phase in HELD_PHASES:
            yield phase, True


async def _job(
    world: World, phase: Phase, *, is_held: bool, needed: int = 1, **options: Any
) -> Job:
    """Return a job in a phase, on two keys and with a dedupe key of its own."""
    world.now_ms += 10
    name = f"{phase}-{world.now_ms}"
    job = await world.add(
        keys=[name, f"{name}-2"], dedupe_key=name, delay=1.5, ceiling=60, until=needed, **options
    )
    if phase is Phase.DECIDED:
        await world.here.run([RunNow(job.id)])
        [job_run] = await _claimed(world, job)
        await world.start(job_run.claim)
        await world.here.run([GiveBack(job_run.claim, 1_000)])
    elif phase is Phase.CANCELLED:
        await world.here.run([Cancel(job.id)])
    elif phase is not Phase.UNDECIDED:
        await world.here.run([RunNow(job.id)])
        [job] = await _claimed(world, job)
        await world.start(job.claim)
        if phase is not Phase.RUNNING:
            await world.here.run([Finish(job.claim, JobState(phase.value))])
    if is_held and phase is not Phase.RUNNING:
        await _claimed(world, job)
    stored = await world.job(job.id)
    assert Phase.of(stored) is phase and (stored.lease_until_ms > 0) == is_held
    return stored


async def _claimed(world: World, job: Job) -> list[Job]:
    """Claim what can be claimed, every other time with a place; return the job."""
    bounds = (ROOMY,) if world.now_ms % 20 else ()
    step = Claim(
        "w1", within_ms=60_000, limit=1_000, lease_ms=LEASE_MS, handlers=HANDLERS, bounds=bounds
    )
    [claimed] = await world.here.run([step])
    return [each for each in claimed.jobs if each.id == job.id]


def _step_on(kind: type[Step[Any]], job: Job, variant: int) -> JobStep[Any]:
    if kind in OF_HOLDER:
        claims = [job.claim, JobClaim(job.id, job.epoch - 1), JobClaim(job.id, job.epoch + 1)]
        return OF_HOLDER[kind](claims[variant])
    if kind is FireJob:
        # One key, none, and both of them, one twice.
        first, second = (job.keys or ("", ""))[:2]
        fired = [((first, "1"),), (("none", "1"),), ((first, "1"), (first, "2"), (second, "3"))]
        return FireJob(job.id, fired[variant], job.round)
    return VERSIONED[kind](job.id, (None, job.version, job.version + 1)[variant])


def _shown(result: object) -> object:
    """An error as its kind, its text and the job that it carries."""
    if isinstance(result, JobError):
        return type(result), str(result), getattr(result, "job", None)
    return result
