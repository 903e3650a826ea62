"""The protocol of job stores, what all stores share, and the store in memory.

Here: `protocol`, which every store implements; group commit and listeners, which they share; and
the store in memory. Not here: what a step does with a job (`jobs.model`), and the stores of a
vendor (`jobs.sql` and `jobs.redis`).
"""

from purgatory.jobs.stores.memory import MemoryJobStore
from purgatory.jobs.stores.protocol import JobStore, StoreListener

__all__ = [
    "JobStore",
    "MemoryJobStore",
    "StoreListener",
]
