"""The worker of one process: leases jobs that are due soon, runs handlers, records the results.

`scheduler` composes it: `claiming` leases jobs, `executor` runs them, `result_reporter` reports
their results, `leased_jobs` renews leases, `worker_store` is the store as all of them call it.
Not here: what a step does with a job (`jobs.model`), how a store keeps it (`jobs.stores`), and the
handlers themselves (`jobs.handlers`).
"""

from purgatory.job_statistics import JobStatistics, Lateness, Recovery
from purgatory.jobs.worker.scheduler import JobScheduler
from purgatory.jobs.worker.settings import WorkerSettings

__all__ = [
    "JobScheduler",
    "JobStatistics",
    "Lateness",
    "Recovery",
    "WorkerSettings",
]
