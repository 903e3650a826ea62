"""Jobs as Redis has them, and the steps that are sent to it, as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator

from purgatory.jobs.model.errors import CorruptJobError, InvalidJobError
from purgatory.jobs.model.job import Job, JobOutcome, JobState, Misfire, OnFire, contradiction
from purgatory.jobs.model.spec import JobSpec

# Separates fields. Handlers and keys hold no control characters, and JSON escapes them.
SEPARATOR = "\0"
# Separates keys within a field.
KEY_SEPARATOR = "\1"
FORMAT = "1"
FIELDS = 24


def step_of(*fields: object) -> bytes:
    """Return a step: its name, then what it takes; None as nothing."""
    texts = ["" if field is None else str(field).replace(SEPARATOR, "\ufffd") for field in fields]
    return SEPARATOR.join(texts).encode("utf-8", "backslashreplace")


def text_field(text: str | None) -> str:
    """Return a text that may be empty or missing, so that the two can be told apart."""
    return "" if text is None else f"={text}"


def add_step(spec: JobSpec) -> bytes:
    """Return the step that adds a job; raise InvalidJobError for what cannot be stored."""
    deadline = spec.deadline
    ceiling_ms = spec.ceiling_delay_ms
    step = SEPARATOR.join(
        (
            "add",
            spec.id,
            "at" if deadline.delay_ms is None else "delay",
            str(deadline.at_ms if deadline.delay_ms is None else deadline.delay_ms),
            "" if ceiling_ms is None else str(ceiling_ms),
            spec.on_conflict.value,
            str(spec.max_attempts),
            spec.on_fire.value,
            spec.misfire.value,
            spec.dedupe_key or "",
            KEY_SEPARATOR.join(spec.keys),
            spec.handler,
            spec.payload_json,
            KEY_SEPARATOR.join(spec.other_ids),
            "",
        )
    )
    most = max(0, len(spec.keys) - 1) + max(0, len(spec.other_ids) - 1)
    if step.count(SEPARATOR) != 14 or step.count(KEY_SEPARATOR) > most:
        raise InvalidJobError(
            f"job {spec.id[:64]!r} holds control characters: make it with JobSpec.of, which says "
            "where"
        )
    return step.encode()


def with_room(step: bytes) -> bytes:
    """Return the same `add_step`, for a store that is known to have room for it."""
    return step + b"room"


def netstrings(reply: bytes) -> Iterator[bytes]:
    """Go through a row of `length:text`."""
    at = 0
    while at < len(reply):
        colon = reply.index(b":", at)
        start = colon + 1
        at = start + int(reply[at:colon])
        yield reply[start:at]


def decode_job(found: bytes) -> Job:
    """Return the job in `id NUL record`; raise CorruptJobError for what is none."""
    id_, _, record = found.partition(b"\0")
    job_id = id_.decode("utf-8", "backslashreplace")
    try:
        job = _job(job_id, record.decode().split(SEPARATOR))
        # Whoever runs it would fail on what is no JSON.
        json.loads(job.payload_json)
    except (ValueError, RecursionError) as exc:
        raise CorruptJobError(job_id, str(exc)) from exc
    reason = contradiction(job)
    if reason is not None:
        raise CorruptJobError(job_id, reason)
    return job


def _job(job_id: str, fields: list[str]) -> Job:
    if len(fields) != FIELDS or fields[0] != FORMAT:
        raise ValueError(f"it has {len(fields)} fields and begins with {fields[0][:16]!r}")
    (
        _, state, outcome, due_ms, deadline_ms, ceiling_ms, created_ms, attempt, epoch,
        lease_until_ms, lateness_ms, finished_ms, version, max_attempts, on_fire, misfire,
        dedupe_key, keys, handler, worker, fired_key, fired_json, error, payload_json,
    ) = fields  # fmt: skip
    return Job(
        id=job_id,
        handler=handler,
        payload_json=payload_json,
        deadline_ms=int(deadline_ms),
        due_ms=int(due_ms),
        created_ms=int(created_ms),
        keys=tuple(keys.split(KEY_SEPARATOR)) if keys else (),
        on_fire=OnFire(on_fire),
        dedupe_key=dedupe_key or None,
        max_attempts=int(max_attempts),
        misfire=Misfire(misfire),
        ceiling_ms=int(ceiling_ms) if ceiling_ms else None,
        state=JobState(state),
        outcome=JobOutcome(outcome) if outcome else None,
        fired_key=fired_key or None,
        fired_json=fired_json or None,
        attempt=int(attempt),
        epoch=int(epoch),
        worker=_text(worker),
        lease_until_ms=int(lease_until_ms),
        lateness_ms=int(lateness_ms) if lateness_ms else None,
        finished_ms=int(finished_ms) if finished_ms else None,
        error=_text(error),
        version=int(version),
    )


def _text(field: str) -> str | None:
    return field[1:] if field else None
