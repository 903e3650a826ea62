"""The lease store in Redis or Valkey. Needs the extra `redis`.

Here: everything of leases that knows Redis. Not here: when leases are acquired, renewed and lost.
"""

import purgatory.redis_server  # noqa: F401  # first: it says which extra is missing
from purgatory.ownership.redis.lease_store import RedisLeaseStore

__all__ = ["RedisLeaseStore"]
