"""Conversion between jobs and rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from purgatory.job_errors import CorruptJobError
from purgatory.jobs.model.dedupe_key import shown_dedupe_key
from purgatory.jobs.model.job import (
    Job,
    JobOutcome,
    JobState,
    Misfire,
    OnFire,
    check_stored,
    job_with,
)
from purgatory.jobs.sql.tables import CONCURRENCY_MARK
from purgatory.json_value import decode_json

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_NAMES = tuple(name for name in Job.__slots__ if name not in ("keys", "fired_before"))
_values_of = attrgetter(*_NAMES)
_NUMBERS = (
    "deadline_ms",
    "due_ms",
    "created_ms",
    "max_attempts",
    "attempt",
    "epoch",
    "lease_until_ms",
    "leased_ms",
    "version",
    "needed",
    "round",
)
_OPTIONAL_NUMBERS = ("round_ms", "ceiling_ms", "placed_ms", "lateness_ms", "finished_ms")
_TEXTS = ("id", "handler", "payload_json", "keys_json")
_OPTIONAL_TEXTS = (
    "dedupe_key",
    "concurrency_key",
    "owner",
    "fired_key",
    "fired_json",
    "fired_before_json",
    "worker",
    "error",
    "traceparent",
)
_NONE = type(None)
# Exact types, which are fast to check for each value of each claimed job.
_KINDS: dict[str, frozenset[type]] = {
    **dict.fromkeys(_NUMBERS, frozenset({int})),
    **dict.fromkeys(_OPTIONAL_NUMBERS, frozenset({int, _NONE})),
    **dict.fromkeys(_TEXTS, frozenset({str})),
    **dict.fromkeys(_OPTIONAL_TEXTS, frozenset({str, _NONE})),
}


def record_of(job: Job) -> dict[str, Any]:
    """Return the row of a job."""
    record = dict(zip(_NAMES, _values_of(job), strict=True))
    record["keys_json"] = _encode(job.keys) if job.keys else "[]"
    record["fired_before_json"] = fired_before_json(job)
    return record


def fired_before_json(job: Job) -> str | None:
    """Return the keys that have fired before; None if there are none."""
    return _encode(job.fired_before) if job.fired_before else None


def listed_key(concurrency_key: str) -> str:
    """Return what a concurrency key is among the keys of its job, for lists."""
    return CONCURRENCY_MARK + shown_dedupe_key(concurrency_key)


def job_of(record: Mapping[str, Any]) -> Job:
    """Return the job of a row; raise CorruptJobError if the row is not a valid job."""
    try:
        return _job_of(record)
    except (TypeError, ValueError) as exc:
        raise CorruptJobError(str(record["id"]), str(exc)) from exc


def is_storable(text: str) -> bool:
    """Return True iff every database can store the text."""
    return bool(storable(text) == text)


def storable(value: Any) -> Any:
    """Return a text with NUL and surrogates escaped; any other value unchanged."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def _job_of(record: Mapping[str, Any]) -> Job:
    fields = dict(record)
    _check(fields)
    outcome = fields["outcome"]
    fields["outcome"] = None if outcome is None else JobOutcome(outcome)
    fields["state"] = JobState(fields["state"])
    fields["on_fire"] = OnFire(fields["on_fire"])
    fields["misfire"] = Misfire(fields["misfire"])
    fields["keys"] = _keys_of(fields.pop("keys_json"))
    fields["fired_before"] = _keys_of(fields.pop("fired_before_json") or "[]")
    job = job_with(fields)
    check_stored(job)
    return job


def _check(fields: Mapping[str, Any]) -> None:
    # SQLite stores any value in any column.
    for name, kinds in _KINDS.items():
        value = fields[name]
        kind = type(value)
        if kind not in kinds:
            raise TypeError(f"{name} is {str(value)[:64]!r}")
        if kind is str and not value.isascii():
            value.encode()  # raises UnicodeEncodeError if the stored bytes are not UTF-8


def _keys_of(keys_json: str) -> tuple[str, ...]:
    if keys_json == "[]":
        return ()
    keys = decode_json(keys_json.encode())
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise TypeError(f"its keys are {keys_json[:64]!r}")
    return tuple(keys)
