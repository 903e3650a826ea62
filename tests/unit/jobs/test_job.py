"""Jobs as values: made quickly, and then as frozen as any."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any

import pytest

from purgatory.job_errors import CorruptJobError
from purgatory.jobs import Job, JobState
from purgatory.jobs.model.job import changed, job_with, new_job
from purgatory.jobs.redis.record import FIELDS, FORMAT, decode_job
from purgatory.jobs.sql.tables import job_of, record_of
from tests.cases import cases

JOB = Job(id="1", handler="note", payload_json="null", deadline_ms=3, due_ms=3, created_ms=1)

MAKERS: list[Callable[[Job], Job]] = [
    changed,
    lambda job: job_with(asdict(job)),
    lambda job: new_job(**asdict(job)),
]


@cases("make", MAKERS)
def test_a_job_that_was_made_quickly_is_like_any_other(make: Callable[[Job], Job]) -> None:
    """Equal, hashable, frozen, and copied and pickled as what the class itself makes."""
    job = make(replace(JOB, keys=("a", "b"), state=JobState.RUNNING, attempt=1))
    assert type(job) is Job
    assert job == replace(JOB, keys=("a", "b"), state=JobState.RUNNING, attempt=1)
    assert hash(job) == hash(replace(job))
    assert job == copy.copy(job) == pickle.loads(pickle.dumps(job))
    with pytest.raises(FrozenInstanceError):
        job.state = JobState.DONE  # type: ignore[misc]  # that it is frozen is what is tested


def test_a_changed_job_leaves_the_other_as_it_was() -> None:
    """As `dataclasses.replace`."""
    job = changed(JOB, epoch=2, worker="w")
    assert job == replace(JOB, epoch=2, worker="w")
    assert (JOB.epoch, JOB.worker) == (0, None)
    with pytest.raises(AttributeError, match="no_field"):
        changed(JOB, no_field=1)


def test_a_new_job_has_the_defaults_of_its_class() -> None:
    """And needs the fields that have none."""
    assert (
        new_job(id="1", handler="note", payload_json="null", deadline_ms=3, due_ms=3, created_ms=1)
        == JOB
    )
    with pytest.raises(TypeError, match="due_ms"):
        new_job(id="1", handler="note", payload_json="null", deadline_ms=3, created_ms=1)  # type: ignore[call-arg]  # what lacks is tested


@cases("name", [field.name for field in fields(Job)])
def test_a_job_of_a_record_needs_every_field(name: str) -> None:
    """A record without one is corrupt."""
    values = asdict(JOB)
    del values[name]
    with pytest.raises(KeyError, match=name):
        job_with(values)


def test_a_job_without_its_fields_is_named() -> None:
    """It is made by a faster way, which the error need not show."""
    with pytest.raises(TypeError, match=r"^Job\.__init__\(\) missing"):
        new_job(id="x")  # type: ignore[call-arg] # on purpose


MALFORMED = {
    "a number with 300 digits": {"due_ms": 10**300},
    "a number beyond 64 bits": {"version": 10**20},
    "a time after the year 9999": {"created_ms": 253_402_300_800_000},
    "a time before the year 1": {"deadline_ms": -62_135_596_800_001},
    "a payload that is no JSON": {"payload_json": "x"},
    "a payload that nests": {"payload_json": "[" * 100_000},
    "65 levels": {"payload_json": "[" * 65 + "]" * 65},
    "NaN": {"payload_json": "NaN"},
    "line breaks": {"payload_json": "[\n]"},
    "a handler that is no name": {"handler": "a\nb"},
    "a key that is none": {"keys": ("",)},
}


@cases("changes", MALFORMED.values())
def test_a_record_that_we_could_not_have_stored_is_corrupt(changes: dict[str, Any]) -> None:
    """In either store: it is set aside, and no response and no handler has to cope with it."""
    assert job_of(record_of(JOB)) == JOB == decode_job(redis_record(JOB))
    job = changed(JOB, **changes)
    with pytest.raises(CorruptJobError):
        job_of(record_of(job))
    if changes.get("keys") != ("",):
        with pytest.raises(CorruptJobError):
            decode_job(redis_record(job))


def redis_record(job: Job) -> bytes:
    """Return what steps.lua stores."""
    times = (job.due_ms, job.deadline_ms, "", job.created_ms, 0, 0, 0, 0, "", "", job.version, 10)
    texts = ("run", "run", "", "", "\1".join(job.keys), job.handler, "", "", "", "", "")
    fields = (FORMAT, "waiting", "", *times, *texts, job.payload_json, 1, "", 0, "", "", "", "")
    assert len(fields) == FIELDS
    return "\0".join(map(str, (job.id, *fields))).encode()
