"""Records: jobs as bytes."""

from __future__ import annotations

from purgatory.job_errors import CorruptJobError
from purgatory.jobs.model.job import (
    Job,
    JobOutcome,
    JobState,
    Misfire,
    OnFire,
    check_stored,
    new_job,
)

# Separates fields. Handlers and keys hold no control characters, and JSON escapes them.
SEPARATOR = "\0"
# Separates keys within a field.
KEY_SEPARATOR = "\1"
# Among the names of paused handlers.
ALL_HANDLERS = "\2"
BUCKET_WIDTH_MS = 60_000
"""Jobs that are due within the same minute share a bucket."""
FORMAT = "1"
FIELDS = 33


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
    (
        _, state, outcome, due_ms, deadline_ms, ceiling_ms, created_ms, attempt, epoch,
        lease_until_ms, leased_ms, lateness_ms, finished_ms, version, max_attempts, on_fire,
        misfire, dedupe_key, keys, handler, worker, fired_key, fired_json, error, owner,
        payload_json, needed, fired_before, round_, round_ms, concurrency_key, placed_ms,
        traceparent,
    ) = fields  # fmt: skip
    return new_job(
        id=job_id,
        handler=handler,
        payload_json=payload_json,
        deadline_ms=int(deadline_ms),
        due_ms=int(due_ms),
        created_ms=int(created_ms),
        keys=_keys(keys),
        on_fire=OnFire(on_fire),
        dedupe_key=dedupe_key or None,
        concurrency_key=concurrency_key or None,
        owner=owner or None,
        max_attempts=int(max_attempts),
        misfire=Misfire(misfire),
        ceiling_ms=int(ceiling_ms) if ceiling_ms else None,
        state=JobState(state),
        outcome=JobOutcome(outcome) if outcome else None,
        fired_key=fired_key or None,
        fired_json=fired_json or None,
        needed=int(needed),
        fired_before=_keys(fired_before),
        round=int(round_),
        round_ms=int(round_ms) if round_ms else None,
        attempt=int(attempt),
        epoch=int(epoch),
        worker=_text(worker),
        lease_until_ms=int(lease_until_ms),
        leased_ms=int(leased_ms),
        placed_ms=int(placed_ms) if placed_ms else None,
        lateness_ms=int(lateness_ms) if lateness_ms else None,
        finished_ms=int(finished_ms) if finished_ms else None,
        error=_text(error),
        version=int(version),
        traceparent=traceparent or None,
    )


def _keys(field: str) -> tuple[str, ...]:
    return tuple(field.split(KEY_SEPARATOR)) if field else ()


def _text(field: str) -> str | None:
    return field[1:] if field else None
