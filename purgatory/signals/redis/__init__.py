"""Signals that several processes share, through Redis or Valkey. Needs the extra `redis`.

Here: the log in the server, and following it. Not here: the copy of the log in this process, which
knows no server (`signals.log_replica`).
"""

import purgatory.redis_server  # noqa: F401  # first: it says which extra is missing
from purgatory.signals.redis.redis_signals import RedisSignals

__all__ = ["RedisSignals"]
