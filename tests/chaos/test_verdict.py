"""The judge finds what it is there to find."""

from dataclasses import replace

import pytest

from purgatory.jobs import Job, JobOutcome, JobState
from tests.chaos.ledger import Deferred, Ledger, Request, Run
from tests.chaos.verdict import judge

DEFERRED = Deferred(7, ("paid",), "run", Request(1_000, 1_010), job_id="job-7", deadline_ms=5_000)
STORED = Job(
    id="job-7",
    handler="note",
    payload_json="{}",
    deadline_ms=5_000,
    due_ms=5_000,
    created_ms=1_005,
    keys=("paid",),
    state=JobState.DONE,
    outcome=JobOutcome.EXPIRED,
    attempt=1,
    finished_ms=5_003,
)
FIRED = replace(STORED, outcome=JobOutcome.FIRED, fired_key="paid", fired_json="1")
CANCELLED = replace(STORED, state=JobState.CANCELLED, outcome=JobOutcome.CANCELLED, attempt=0)
RUN = Run(7, "job-7", 1, "expired", 5_001)


def test_a_quiet_job_is_no_fault() -> None:
    """It was acknowledged, ran in time, and is done."""
    verdict = judge(Ledger(jobs=[DEFERRED]), [RUN], [STORED])
    assert verdict.faults == []
    assert (verdict.acknowledged, verdict.runs, verdict.repeats, verdict.unknown) == (1, 1, 0, 0)


def test_a_repeat_is_counted() -> None:
    """At least once: a second run is no fault."""
    verdict = judge(Ledger(jobs=[DEFERRED]), [RUN, RUN._replace(attempt=2)], [STORED])
    assert (verdict.faults, verdict.repeats) == ([], 1)


@pytest.mark.parametrize(
    ("fault", "deferred", "runs", "stored", "fires"),
    [
        ("is lost", DEFERRED, [RUN], [], []),
        ("never ran", DEFERRED, [], [STORED], []),
        ("ran 500 ms early", DEFERRED, [RUN._replace(at_ms=4_500)], [STORED], []),
        ("is still running", DEFERRED, [RUN], [replace(STORED, state=JobState.RUNNING)], []),
        ("though it was retried", DEFERRED, [RUN], [replace(STORED, state=JobState.FAILED)], []),
        ("has no outcome", DEFERRED, [RUN], [replace(STORED, outcome=None)], []),
        (
            "several outcomes",
            DEFERRED,
            [RUN, RUN._replace(outcome="fired", attempt=2)],
            [STORED],
            [Request(1_100, 1_200)],
        ),
        (
            "ran after its cancel",
            replace(DEFERRED, cancels=[Request(3_000, 3_001)]),
            [RUN],
            [CANCELLED],
            [],
        ),
        (
            "its cancel was acknowledged, and it is done",
            replace(DEFERRED, cancels=[Request(3_000, 3_001)]),
            [],
            [STORED],
            [],
        ),
        ("nobody asked for that", DEFERRED, [], [CANCELLED], []),
        ("was fired by ('paid',), and only", DEFERRED, [RUN], [FIRED], []),
        (
            "of its keys fired in time",
            DEFERRED,
            [RUN],
            [STORED],
            [Request(1_100, 1_200)],
        ),
        (
            "of its keys fired in time",
            # Before it was stored, and since its cursor.
            replace(DEFERRED, since_ms=900),
            [RUN],
            [STORED],
            [Request(950, 990)],
        ),
        (
            "waits again 1 times",
            replace(DEFERRED, rounds=1),
            [RUN],
            [STORED],
            [],
        ),
        (
            "ran early",
            replace(DEFERRED, rounds=1),
            [RUN, RUN._replace(round=1, at_ms=RUN.at_ms + 200)],
            [replace(STORED, round=1)],
            [],
        ),
        (
            "needs 2 keys",
            replace(DEFERRED, keys=("paid", "sent"), needed=2),
            [RUN],
            [FIRED],
            [Request(1_100, 1_200)],
        ),
        (
            "was cancelled by its key, and ran",
            replace(DEFERRED, on_fire="cancel"),
            [RUN],
            [replace(FIRED, state=JobState.CANCELLED)],
            [Request(1_100, 1_200)],
        ),
        ("did not know it", replace(DEFERRED, is_missing=True), [RUN], [STORED], []),
    ],
)
def test_a_broken_promise_is_found(
    fault: str, deferred: Deferred, runs: list[Run], stored: list[Job], fires: list[Request]
) -> None:
    """Each of them, by what clients and handlers wrote down."""
    verdict = judge(Ledger(jobs=[deferred], fires={"paid": fires}), runs, stored)
    assert any(fault in found for found in verdict.faults), verdict.faults


def test_a_run_during_a_pause() -> None:
    """Not one that was under way, nor one of a process that stood still."""
    paused = Ledger(jobs=[DEFERRED], pauses=[(2_000, 9_000)])
    [fault] = judge(paused, [RUN], [STORED]).faults
    assert "paused from 2000" in fault
    under_way = Ledger(jobs=[DEFERRED], pauses=[(4_500, 9_000)])
    still = Ledger(jobs=[DEFERRED], pauses=[(2_000, 9_000)], disturbances=[(1_000, 4_500)])
    for ledger in (under_way, still):
        assert judge(ledger, [RUN], [STORED]).faults == []


def test_too_many_at_once_are_a_fault() -> None:
    """Of a bounded handler, or of one of its keys; each job once, and not beyond its lease."""
    ids = [f"job-{number}" for number in range(5)]
    stored = [replace(STORED, id=job_id, handler="charge") for job_id in ids]
    spans = [(job_id, 5_000, 5_010) for job_id in ids]
    faults = judge(Ledger(), [], stored, spans).faults
    assert len(faults) == 1 and faults[0].startswith("5 jobs ran at once at 5000")
    assert judge(Ledger(), [], stored, [*spans[:4], spans[0], ("job-4", 5_010, 5_020)]).faults == []
    assert judge(Ledger(), [], stored, [("job-0", 1_000, 9_000), *spans[1:]]).faults == []
    same_key = [replace(job, concurrency_key="a") for job in stored]
    assert len(judge(Ledger(), [], same_key, spans[:3]).faults) == 1
    assert judge(Ledger(), [], same_key, spans[:2]).faults == []
