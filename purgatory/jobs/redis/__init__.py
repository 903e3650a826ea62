"""Jobs in Redis. Needs the extra `redis`."""

try:
    import redis as _redis  # noqa: F401  # only to say which extra is missing
except ImportError as exc:
    raise ImportError(
        "purgatory.jobs.redis needs redis-py: pip install fastapi-purgatory[redis]"
    ) from exc

from purgatory.jobs.redis.store import BUCKET_WIDTH_MS, RedisJobStore

__all__ = ["BUCKET_WIDTH_MS", "RedisJobStore"]
