"""Jobs and steps as bytes: jobs as steps.lua writes them, steps as it reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from purgatory.job_errors import CorruptJobError, InvalidJobError
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.job import (
    BlockedBy,
    Job,
    JobOutcome,
    JobState,
    Misfire,
    OnFire,
    bounded_error,
    check_stored,
    job_with,
)
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import (
    Cancel,
    Claim,
    Finish,
    Fire,
    FireJob,
    GiveBack,
    JobStep,
    KeyStep,
    Miss,
    Renew,
    Reschedule,
    Retry,
    RunNow,
    Start,
    WaitAgain,
)

# Separates fields. Handlers and keys hold no control characters, and JSON escapes them.
SEPARATOR = "\0"
# Separates keys within a field.
KEY_SEPARATOR = "\1"
# Among the names of paused handlers.
ALL_HANDLERS = "\2"
FORMAT = "1"


def decode_job(found: bytes) -> Job:
    """Return the job in `id NUL record`; raise CorruptJobError if it is not one."""
    id_, _, record = found.partition(b"\0")
    job_id = id_.decode("utf-8", "backslashreplace")
    try:
        job = _job(job_id, record.decode().split(SEPARATOR))
        check_stored(job)
    except ValueError as exc:
        raise CorruptJobError(job_id, str(exc)) from exc
    return job


def _job(job_id: str, fields: list[str]) -> Job:
    if fields[0] != FORMAT or len(fields) != FIELDS:
        raise ValueError(f"it has {len(fields)} fields and begins with {fields[0][:16]!r}")
    values = {
        name: read(text) for (name, read), text in zip(_READERS.items(), fields[1:], strict=True)
    }
    values["id"] = job_id
    return job_with(values)


# An empty field is None.
def _optional(kind: type[StrEnum]) -> Callable[[str], StrEnum | None]:
    return lambda field: kind(field) if field else None


def _number(field: str) -> int | None:
    return int(field) if field else None


def _name(field: str) -> str | None:
    return field or None


def _keys(field: str) -> tuple[str, ...]:
    return tuple(field.split(KEY_SEPARATOR)) if field else ()


def _text(field: str) -> str | None:
    return field[1:] if field else None


# In the order of steps.lua, behind the format.
_READERS: Mapping[str, Callable[[str], Any]] = {
    "state": JobState,
    "outcome": _optional(JobOutcome),
    "due_ms": int,
    "deadline_ms": int,
    "ceiling_ms": _number,
    "created_ms": int,
    "attempt": int,
    "epoch": int,
    "lease_until_ms": int,
    "leased_ms": int,
    "lateness_ms": _number,
    "finished_ms": _number,
    "version": int,
    "max_attempts": int,
    "on_fire": OnFire,
    "misfire": Misfire,
    "dedupe_key": _name,
    "blocked_by": _optional(BlockedBy),
    "keys": _keys,
    "handler": str,
    "worker": _text,
    "fired_key": _name,
    "fired_json": _name,
    "error": _text,
    "owner": _name,
    "payload_json": str,
    "needed": int,
    "fired_before": _keys,
    "round": int,
    "round_ms": _number,
    "concurrency_key": _name,
    "slot_ms": _number,
    "traceparent": _name,
}
FIELDS: Final = 1 + len(_READERS)


def step_of(*fields: object) -> bytes:
    """Return a step: its name, then its parameters; None as an empty field."""
    texts = ["" if field is None else str(field).replace(SEPARATOR, "\ufffd") for field in fields]
    return SEPARATOR.join(texts).encode("utf-8", "backslashreplace")


def names_field(handlers: Sequence[str] | None) -> str | None:
    """Return the names of handlers as one field; None for all."""
    # A name that no handler has, where there is none: an empty field is for all.
    return None if handlers is None else KEY_SEPARATOR.join(handlers) or KEY_SEPARATOR


def job_step(step: JobStep[Any], limits: JobLimits) -> bytes:
    """Return a step on one job."""
    fields: tuple[object, ...]
    match step:
        # First those of every job.
        case Start():
            bounds = () if step.bounds is None else step.bounds[1:]
            fields = ("start", *step.claim, step.lease_ms, step.attempt, *bounds)
        case Finish():
            fields = ("finish", *step.claim, step.state, _error_field(step.error, limits))
        case Renew():
            fields = ("renew", *step.claim, step.lease_ms)
        case FireJob():
            fired = (text for pair in step.fired for text in pair)
            fields = ("fire_job", step.id, step.round, *fired)
        case GiveBack():
            error = _error_field(step.error, limits)
            fields = ("give_back", *step.claim, step.delay_ms, error, step.hold_ms)
        case WaitAgain():
            keys = KEY_SEPARATOR.join(step.keys)
            wait = (*_deadline(step.deadline), keys, step.needed, step.on_fire)
            fields = ("wait_again", *step.claim, *wait, step.payload_json)
        case Miss():
            fields = ("miss", *step.claim)
        case Cancel():
            fields = ("cancel", step.id, step.if_version)
        case Reschedule():
            fields = ("reschedule", step.id, step.if_version, *_deadline(step.deadline))
        case RunNow():
            fields = ("run_now", step.id, step.if_version)
        case Retry():
            fields = ("retry", step.id, step.if_version)
        case _:
            raise TypeError(f"{step!r} is not a step of the job model")
    return step_of(*fields)


def key_step(step: KeyStep, limit: int) -> bytes:
    """Return a step on the jobs on a key, with this limit."""
    if isinstance(step, Fire):
        return step_of("fire", step.key, step.value_json, limit)
    return step_of("cancel_for_key", step.key, limit)


def claim_step(step: Claim, limit: int) -> bytes:
    """Return the step that claims, with this limit."""
    bounds = [field for each in step.bounds for field in each]
    names = names_field(step.handlers)
    worker = (f"={step.worker}", step.within_ms, limit, step.lease_ms)
    return step_of("claim", *worker, names, step.clock_ms, *bounds)


def add_step(spec: JobSpec) -> bytes:
    """Return the step that adds a job; raise InvalidJobError for what cannot be stored."""
    ceiling_ms = spec.ceiling_delay_ms
    mode, ms = _deadline(spec.deadline)
    step = SEPARATOR.join(
        (
            "add",
            spec.id,
            mode,
            str(ms),
            "" if ceiling_ms is None else str(ceiling_ms),
            spec.on_conflict.value,
            str(spec.max_attempts),
            spec.on_fire.value,
            spec.misfire.value,
            spec.dedupe_key or "",
            KEY_SEPARATOR.join(spec.keys),
            spec.handler,
            spec.payload_json,
            KEY_SEPARATOR.join(spec.request or ()),
            spec.owner or "",
            "" if spec.needed == 1 else str(spec.needed),
            spec.concurrency_key or "",
            spec.traceparent or "",
            "",
        )
    )
    separators = max(0, len(spec.keys) - 1) + (spec.request is not None)
    if step.count(SEPARATOR) != 18 or step.count(KEY_SEPARATOR) > separators:
        raise InvalidJobError(
            f"job {spec.id[:64]!r} holds control characters: make it with JobSpec.of, which says "
            "where"
        )
    return step.encode()


def _error_field(error: str | None, limits: JobLimits) -> str:
    """Return a text that may be empty or missing, so that the two differ."""
    return "" if error is None else f"={bounded_error(error, limits.max_error_length)}"


def _deadline(deadline: Deadline) -> tuple[str, int | None]:
    if deadline.delay_ms is None:
        return "at", deadline.at_ms
    return "delay", deadline.delay_ms
