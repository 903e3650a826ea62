"""Redis and Valkey servers: settings that lose what was acknowledged, scripts. Extra `redis`.

Here: what job store, signals and ownership have in common. Not here: what each keeps there
(`jobs.redis`, `signals.redis`, `ownership.redis`).
"""

try:
    import redis as _redis  # noqa: F401  # only to say which extra is missing
except ImportError as exc:
    raise ImportError("Redis needs redis-py: pip install 'fastapi-purgatory[redis]'") from exc
