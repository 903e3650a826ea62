"""The job store in Redis or Valkey. Needs the extra `redis`.

Here: everything that knows Redis. Not here: what a step does with a job in Python
(`jobs.model.transitions`); `steps.lua` says the same, and the tests of the contract compare them.
"""

try:
    import redis as _redis  # noqa: F401  # only to say which extra is missing
except ImportError as exc:
    raise ImportError(
        "purgatory.jobs.redis needs redis-py: pip install 'fastapi-purgatory[redis]'"
    ) from exc

from purgatory.jobs.redis.record import BUCKET_WIDTH_MS
from purgatory.jobs.redis.store import RedisJobStore

__all__ = ["BUCKET_WIDTH_MS", "RedisJobStore"]
