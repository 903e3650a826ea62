"""The job store in Redis or Valkey. Needs the extra `redis`.

Here: everything that knows Redis. Not here: what a step does with a job in Python
(`jobs.model.transitions`); `steps.lua` says the same, and the tests of the contract compare them.
"""

import purgatory.redis_server  # noqa: F401  # first: it says which extra is missing
from purgatory.jobs.redis.store import RedisJobStore

__all__ = ["RedisJobStore"]
