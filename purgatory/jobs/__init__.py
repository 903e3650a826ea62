"""Delayed jobs: handlers that run at a deadline or when a key fires, unless a key cancels them.

In this folder: what a `Purgatory` does with jobs (`job_service`, `jobs_mixin`), and waits for jobs.
Jobs themselves are in `model`, handlers in `handlers`, the worker in `worker`, stores in `stores`,
`sql` and `redis`, and HTTP callbacks in `callbacks`.
"""

from purgatory.jobs.callbacks.callback import CALLBACK, Callback
from purgatory.jobs.callbacks.signature import sign, verify_signature
from purgatory.jobs.handlers.job_context import JobContext
from purgatory.jobs.handlers.registry import JobHandlers
from purgatory.jobs.model.deadline import Deadline
from purgatory.jobs.model.errors import (
    CorruptJobError,
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
    NoJobStoreError,
    RetryJobError,
    StoreError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnknownHandlerError,
)
from purgatory.jobs.model.job import (
    Job,
    JobClaim,
    JobOutcome,
    JobState,
    Misfire,
    OnFire,
    bounded_error,
    new_job_id,
)
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.spec import JobSpec, OnConflict, encode_payload
from purgatory.jobs.stores.base import (
    Added,
    AddStatus,
    Claimed,
    JobCounts,
    JobFilter,
    JobPage,
    JobResult,
    JobReturn,
    JobStore,
    KeyFire,
    KeyFired,
    QuarantinedRecord,
    StoreListener,
)
from purgatory.jobs.stores.memory import MemoryJobStore
from purgatory.jobs.worker.scheduler import JobScheduler
from purgatory.jobs.worker.settings import WorkerSettings
from purgatory.jobs.worker.statistics import JobStatistics, Lateness, Recovery
from purgatory.retry_policy import RetryPolicy

__all__ = [
    "CALLBACK",
    "AddStatus",
    "Added",
    "Callback",
    "Claimed",
    "CorruptJobError",
    "Deadline",
    "DuplicateJobError",
    "FailJobError",
    "InvalidDeadlineError",
    "InvalidJobError",
    "InvalidPayloadError",
    "Job",
    "JobChangedError",
    "JobClaim",
    "JobConflictError",
    "JobContext",
    "JobCounts",
    "JobError",
    "JobFilter",
    "JobHandlers",
    "JobLimits",
    "JobNotFoundError",
    "JobOutcome",
    "JobPage",
    "JobResult",
    "JobReturn",
    "JobScheduler",
    "JobSpec",
    "JobState",
    "JobStatistics",
    "JobStore",
    "JobsNotFiredError",
    "KeyFire",
    "KeyFired",
    "Lateness",
    "MemoryJobStore",
    "Misfire",
    "NoJobStoreError",
    "OnConflict",
    "OnFire",
    "QuarantinedRecord",
    "Recovery",
    "RetryJobError",
    "RetryPolicy",
    "StoreError",
    "StoreFullError",
    "StoreListener",
    "StoreNotReadyError",
    "StoreReadOnlyError",
    "StoreUnavailableError",
    "UnknownHandlerError",
    "WorkerSettings",
    "bounded_error",
    "encode_payload",
    "new_job_id",
    "sign",
    "verify_signature",
]
