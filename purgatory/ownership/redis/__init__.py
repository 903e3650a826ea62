"""The lease store in Redis or Valkey. Needs the extra `redis`.

Here: everything of leases that knows Redis. Not here: when leases are acquired, renewed and lost.
"""

try:
    import redis as _redis  # noqa: F401  # only to say which extra is missing
except ImportError as exc:
    raise ImportError(
        "purgatory.ownership.redis needs redis-py: pip install 'fastapi-purgatory[redis]'"
    ) from exc

from purgatory.ownership.redis.lease_store import RedisLeaseStore

__all__ = ["RedisLeaseStore"]
