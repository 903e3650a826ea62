"""The rows of a batch, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from purgatory.journal.schema import EVENT_SCHEMA, EVENTS

_CODES: Final = {event: code for code, event in enumerate(EVENTS)}
_EXPIRED: Final = _CODES["expired"]
_WATCHED: Final = _CODES["watched"]
_STRING: Final = pa.string()


class Columns:
    """Lists that rows are added to, one for each column; they become Arrow's in one go.

    Times are whole microseconds UTC. Lists of Python's, since a row comes at a time; what can be
    computed from other columns is computed afterwards, for all rows at once.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self.clear()

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._identifiers)

    def clear(self) -> None:
        """Forget all rows."""
        self._identifiers: list[str] = []
        self._events: list[int] = []
        self._seqs: list[int] = []
        self._kinds: list[str] = []
        self._keys: list[Sequence[str]] = []
        self._at: list[int] = []
        self._watched_at: list[int] = []
        self._deadlines: list[int] = []
        self._completed_by: list[str | None] = []
        # Row -> what only jobs have. Few: so they are not written into lists for everyone.
        self._jobs: dict[int, tuple[str, str, int, str, str | None]] = {}

    def add(
        self,
        identifier: str,
        event: str,
        seq: int,
        kind: str,
        keys: Sequence[str],
        at_us: int,
        watched_at_us: int,
        deadline_us: int,
        completed_by: str | None,
    ) -> None:
        """Add a row."""
        self._identifiers.append(identifier)
        self._events.append(_CODES[event])
        self._seqs.append(seq)
        self._kinds.append(kind)
        self._keys.append(keys)
        self._at.append(at_us)
        self._watched_at.append(watched_at_us)
        self._deadlines.append(deadline_us)
        self._completed_by.append(completed_by)

    def note_job(
        self, job_id: str, handler: str, attempt: int, state: str, error: str | None
    ) -> None:
        """Make the last row that of a job."""
        self._jobs[len(self) - 1] = (job_id, handler, attempt, state, error)

    def batch(self) -> pa.RecordBatch:
        """Return the rows as EVENT_SCHEMA has them."""
        codes = pa.array(self._events, pa.int32())
        at = pa.array(self._at, pa.int64())
        deadlines = pa.array(self._deadlines, pa.int64())
        is_expired = pc.equal(codes, _EXPIRED)
        nothing = pa.scalar(None, pa.int64())
        lateness = pc.max_element_wise(pc.subtract(at, deadlines), 0)
        columns: dict[str, Any] = {
            "operation_id": pa.array(self._identifiers, _STRING),
            "event": pa.DictionaryArray.from_arrays(codes, pa.array(EVENTS)),
            "seq": pa.array(self._seqs, pa.int64()),
            "kind": pa.array(self._kinds, _STRING).dictionary_encode(),
            "keys": pa.array(self._keys, pa.list_(_STRING)),
            "worker": pa.array([self._worker] * len(self), _STRING).dictionary_encode(),
            "at": at,
            "watched_at": pa.array(self._watched_at, pa.int64()),
            "deadline": deadlines,
            "completed_at": pc.if_else(pc.equal(codes, _WATCHED), nothing, at),
            "lateness_us": pc.if_else(is_expired, lateness, nothing),
            "completed_by": pa.array(self._completed_by, _STRING),
            **self._job_columns(),
        }
        arrays = [columns[column.name].cast(column.type) for column in EVENT_SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)

    def _job_columns(self) -> dict[str, Any]:
        names = ("job_id", "handler", "attempt", "state", "error")
        if not self._jobs:
            return {name: pa.nulls(len(self), EVENT_SCHEMA.field(name).type) for name in names}
        rows = [self._jobs.get(row, (None,) * len(names)) for row in range(len(self))]
        values = zip(names, zip(*rows, strict=True), strict=True)
        return {
            name: pa.array(column, pa.int32() if name == "attempt" else _STRING)
            for name, column in values
        }
