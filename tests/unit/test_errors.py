"""Errors as values: copied, and sent to other processes."""

from __future__ import annotations

import copy
import pickle

from purgatory.client import RefusedError
from purgatory.errors import CursorExpiredError, LimitReachedError, PurgatoryError
from purgatory.jobs import (
    DuplicateJobError,
    InvalidDeadlineError,
    Job,
    JobChangedError,
    JobConflictError,
    JobNotFoundError,
    JobsNotFiredError,
    RetryJobError,
    StoreUnavailableError,
)
from purgatory.jobs.model import CorruptJobError
from tests.cases import cases

JOB = Job(id="1", handler="note", payload_json="null", deadline_ms=3, due_ms=3, created_ms=1)


@cases(
    "error",
    [
        PurgatoryError(),
        CursorExpiredError(key="k", earliest="a-1", head="a-2"),
        LimitReachedError("full", limit="max_parked", maximum=3),
        InvalidDeadlineError("late", param="at"),
        JobNotFoundError("1"),
        DuplicateJobError(JOB),
        JobConflictError(JOB, "cancelled"),
        JobChangedError(JOB, 7),
        CorruptJobError("1", "it is no JSON"),
        RetryJobError("busy", after=3),
        StoreUnavailableError("away"),
        JobsNotFiredError("k", "a-1", "away"),
        RefusedError(422, {"type": "/problems/bad-parameter", "detail": "no"}),
    ],
)
def test_an_error_is_copied_as_it_is(error: PurgatoryError) -> None:
    """Also through pickle, as from a process of a pool, which else would hang or break."""
    error.add_note("seen")
    for other in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error)
        assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))
