"""Delayed jobs: handlers that run at a deadline or when a key fires, unless a key cancels them.

What an application needs is exported here. What a job store of your own needs is in
`purgatory.jobs.model` (steps, records) and `purgatory.jobs.stores`, and all errors are in
`purgatory.job_errors`; callbacks over HTTP and their signatures are in `purgatory.jobs.callbacks`,
statistics in `purgatory.jobs.worker`.

In this folder: `Purgatory.jobs` (`jobs`), what clients of a store share with it (`commands`), and
waits for jobs.
Jobs themselves are in `model`, handlers in `handlers`, the worker in `worker`, stores in `stores`,
`sql` and `redis`, and HTTP callbacks in `callbacks`.
"""

from purgatory.job_errors import (
    DuplicateJobError,
    FailJobError,
    InvalidDeadlineError,
    InvalidJobError,
    InvalidPayloadError,
    JobChangedError,
    JobConflictError,
    JobError,
    JobNotFoundError,
    JobsNotFiredError,
    RetryJobError,
    StoreError,
    StoreUnavailableError,
    UnknownHandlerError,
)
from purgatory.jobs.handlers.job_context import Again, JobContext
from purgatory.jobs.jobs import JobHandle, Jobs
from purgatory.jobs.model.job import Job, JobOutcome, JobState
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.stores.memory import MemoryJobStore
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.settings import WorkerSettings
from purgatory.retry_policy import RetryPolicy

__all__ = [
    "Again",
    "DuplicateJobError",
    "FailJobError",
    "InvalidDeadlineError",
    "InvalidJobError",
    "InvalidPayloadError",
    "Job",
    "JobChangedError",
    "JobConflictError",
    "JobContext",
    "JobError",
    "JobHandle",
    "JobLimits",
    "JobNotFoundError",
    "JobOutcome",
    "JobState",
    "JobStore",
    "Jobs",
    "JobsNotFiredError",
    "MemoryJobStore",
    "RetryJobError",
    "RetryPolicy",
    "StoreError",
    "StoreUnavailableError",
    "UnknownHandlerError",
    "WorkerSettings",
]
