"""Signals that several processes share, through Redis or Valkey. Needs the extra `redis`.

Here: the log in the server, and following it. Not here: the copy of the log in this process, which
knows no server (`signals.log_replica`).
"""

try:
    import redis as _redis  # noqa: F401  # only to say which extra is missing
except ImportError as exc:
    raise ImportError(
        "purgatory.signals.redis needs redis-py: pip install 'fastapi-purgatory[redis]'"
    ) from exc

from purgatory.signals.redis.redis_signals import RedisSignals

__all__ = ["RedisSignals"]
