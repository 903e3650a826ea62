"""Jobs as bytes, as steps.lua writes them, and the fields of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from purgatory.job_errors import CorruptJobError
from purgatory.jobs.model.job import (
    BlockedBy,
    Job,
    JobOutcome,
    JobState,
    Misfire,
    OnFire,
    check_stored,
    job_with,
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
