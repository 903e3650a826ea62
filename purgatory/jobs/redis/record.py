"""Records: jobs as bytes."""

from __future__ import annotations

import json

from purgatory.jobs.model.errors import CorruptJobError
from purgatory.jobs.model.job import (
    Job,
    JobOutcome,
    JobState,
    Misfire,
    OnFire,
    contradiction,
    new_job,
)

# Separates fields. Handlers and keys hold no control characters, and JSON escapes them.
SEPARATOR = "\0"
# Separates keys within a field.
KEY_SEPARATOR = "\1"
BUCKET_WIDTH_MS = 60_000
"""Jobs that are due within the same minute share a bucket."""
FORMAT = "1"
FIELDS = 25


def decode_job(found: bytes) -> Job:
    """Return the job in `id NUL record`; raise CorruptJobError if it is not one."""
    id_, _, record = found.partition(b"\0")
    job_id = id_.decode("utf-8", "backslashreplace")
    try:
        job = _job(job_id, record.decode().split(SEPARATOR))
        # Its handler could not read what is not JSON.
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
        dedupe_key, keys, handler, worker, fired_key, fired_json, error, owner, payload_json,
    ) = fields  # fmt: skip
    return new_job(
        id=job_id,
        handler=handler,
        payload_json=payload_json,
        deadline_ms=int(deadline_ms),
        due_ms=int(due_ms),
        created_ms=int(created_ms),
        keys=tuple(keys.split(KEY_SEPARATOR)) if keys else (),
        on_fire=OnFire(on_fire),
        dedupe_key=dedupe_key or None,
        owner=owner or None,
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
