"""Job specifications from rows of a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from purgatory.errors import PurgatoryError
from purgatory.jobs import JobError, JobLimits
from purgatory.jobs.model import JobSpec
from purgatory.timer.clock import Clock, SystemClock

COLUMNS = (
    *("handler", "payload", "delay", "at", "keys", "on_fire", "dedupe_key", "max_attempts"),
    *("misfire", "id"),
)
"""The columns of a row; `handler`, and either `delay` or `at`, are required."""

_OPTIONAL = ("on_fire", "misfire", "max_attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRows:
    """Makes the same job of the same row, every time.

    The id of a job is derived from `name` and the row's `id`, else its `dedupe_key`, else the whole
    row. So a row that was added before is recognised, whatever the state of its job; equal rows are
    one job. A `delay` counts from `started_ms`; if it has passed when its row is added, the job is
    due at once.
    """

    name: str
    started_ms: int
    on_conflict: str = "keep"
    limits: JobLimits
    clock: Clock = field(default_factory=SystemClock, compare=False)
    """Not part of an id."""

    def spec(self, row: Mapping[str, Any]) -> JobSpec:
        """Return the job of a row. Raises ValueError, TypeError or PurgatoryError."""
        given = {name: row[name] for name in _OPTIONAL if row.get(name) is not None}
        given["on_conflict"] = "error" if row.get("dedupe_key") is None else self.on_conflict
        spec = JobSpec.of(
            row.get("handler"),  # type: ignore[arg-type] # refused by name if it is missing
            _payload(row.get("payload")),
            wall_ms=self.started_ms,
            at=self._at(row),
            keys=_keys(row.get("keys")),
            dedupe_key=row.get("dedupe_key"),
            limits=self.limits,
            **given,
        )
        return replace(spec, id=self._id(row))

    def _at(self, row: Mapping[str, Any]) -> datetime:
        delay, at = row.get("delay"), row.get("at")
        if (delay is None) == (at is None):
            raise ValueError(f"delay is {delay!r} and at is {at!r}: give exactly one of the two")
        if delay is None:
            if not isinstance(at, datetime):
                raise TypeError(f"at is {at!r}: give a timestamp")
            return at.astimezone(UTC)
        # Refuses what is too long, negative or not a number.
        delay_ms = JobSpec.of("x", wall_ms=0, delay=delay, limits=self.limits).deadline.delay_ms
        # Not in the past, which the store would refuse: adding millions takes minutes.
        at_ms = max(self.started_ms + (delay_ms or 0), self.clock.wall_ms())
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)

    def _id(self, row: Mapping[str, Any]) -> str:
        identity = next(
            ([name, row[name]] for name in ("id", "dedupe_key") if row.get(name) is not None),
            {name: row.get(name) for name in COLUMNS},
        )
        text = json.dumps([self.name, identity], sort_keys=True, default=str)
        digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=10)
        # Like all ids: first the time, then digits that cannot be guessed.
        return f"{self.started_ms & 0xFFFF_FFFF_FFFF:012x}{digest.hexdigest()}"


def reason_of(error: Exception) -> tuple[str, str]:
    """Return the reason of a refusal, in one word for counts, and its message."""
    if isinstance(error, JobError | PurgatoryError):
        return type(error).__name__.removesuffix("Error"), str(error)
    return "InvalidRow", str(error)


def _keys(keys: Any) -> Any:
    # In a CSV file keys are a string with commas.
    parts = keys.split(",") if isinstance(keys, str) else keys or ()
    return [part for key in parts if (part := key.strip())]


def _payload(text: Any) -> Any:
    # A struct or an array is used as it is; text is JSON.
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ValueError(f"the payload is not JSON ({error}): {text[:60]!r}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
