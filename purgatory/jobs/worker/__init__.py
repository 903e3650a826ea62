"""The worker of one process: leases jobs that are due soon, runs handlers, records the results.

`scheduler` composes it: `claimer` leases, `runner` and `executor` run, `recovery` decides on jobs
that were due while no worker ran, `lease_renewer` and `retention` run beside them. Not here: what a
step makes of a job (`jobs.model`), how a store keeps it (`jobs.stores`), and the handlers
themselves (`jobs.handlers`).
"""

from purgatory.jobs.worker.scheduler import (
    JobScheduler,
)
from purgatory.jobs.worker.settings import (
    WorkerSettings,
)
from purgatory.jobs.worker.statistics import (
    JobStatistics,
    Lateness,
    Recovery,
)

__all__ = [
    "JobScheduler",
    "JobStatistics",
    "Lateness",
    "Recovery",
    "WorkerSettings",
]
