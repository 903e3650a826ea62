"""The names that users import: a new one is a decision, made here."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

from tests.cases import cases

# What the README and the tutorial need. The rest is in the rooms, each with its own `__all__`.
NAMES = {
    "purgatory": """
        BadCursorError CursorExpiredError DelayedOperation FireResult InvalidKeyError
        InvalidTimeoutError InvalidValueError LimitReachedError Limits Outcome Purgatory
        PurgatoryClosedError PurgatoryDrainingError PurgatoryError Statistics Status
        WrongThreadError
    """,
    "purgatory.fastapi": """
        ALLOW_ANYONE Access AccessesDep Action BearerTokens DelayedResponse EndpointGroup
        FollowDep LongPollKey LongPollMiddleware ParkDep Problem PurgatoryDep TrustedHosts
        WaitSettings create_health_router create_lifespan create_router get_park get_purgatory
        install new_token
    """,
    "purgatory.jobs": """
        Again DuplicateJobError FailJobError InvalidDeadlineError InvalidJobError
        InvalidPayloadError
        Job JobChangedError JobConflictError JobContext JobError JobHandle JobLimits
        JobNotFoundError JobOutcome JobState JobStore Jobs JobsNotFiredError MemoryJobStore
        RetryJobError RetryPolicy StoreError StoreUnavailableError UnknownHandlerError
        WorkerSettings
    """,
    "purgatory.testing": "AutojumpEventLoop Clock DeadlockError MockClock current_clock",
}
MAXIMUM = {"purgatory": 25, "purgatory.fastapi": 22, "purgatory.jobs": 26, "purgatory.testing": 5}
ROOMS = [
    "purgatory.errors",
    "purgatory.jobs.callbacks",
    "purgatory.jobs.clients",
    "purgatory.jobs.handlers",
    "purgatory.jobs.model.deadline",
    "purgatory.jobs.model.job",
    "purgatory.jobs.model.limits",
    "purgatory.jobs.model.spec",
    "purgatory.jobs.model.steps",
    "purgatory.jobs.stores",
    "purgatory.jobs.worker",
    "purgatory.operations",
    "purgatory.ownership",
    "purgatory.signals",
    "purgatory.timer",
]


@cases("module", NAMES)
def test_the_exported_names_are_these(module: str) -> None:
    """And few: who adds one decides that it belongs here, rather than in a room."""
    exported = importlib.import_module(module).__all__
    assert sorted(exported) == sorted(NAMES[module].split())
    assert len(exported) <= MAXIMUM[module]


@cases("module", [*NAMES, *ROOMS])
def test_every_exported_name_is_there_and_documented(module: str) -> None:
    """`__all__` is the interface, for people as for type checkers."""
    imported = importlib.import_module(module)
    assert len(imported.__all__) == len(set(imported.__all__))
    for name in imported.__all__:
        item = getattr(imported, name)
        assert not (inspect.isclass(item) or inspect.isfunction(item)) or item.__doc__, name


@cases("module", [*NAMES, "purgatory.pipeline"])
def test_no_exported_name_hides_a_package(module: str) -> None:
    """`import purgatory.pipeline.replay as replay` is a package, and not a function in it."""
    imported = importlib.import_module(module)
    packages = {found.name for found in pkgutil.iter_modules(imported.__path__) if found.ispkg}
    assert not packages & set(imported.__all__)


def test_every_error_is_in_the_room_for_errors() -> None:
    """Whatever the top level leaves out can be caught by a public name."""
    errors = importlib.import_module("purgatory.errors")
    own = {
        name
        for name, item in vars(errors).items()
        if inspect.isclass(item) and issubclass(item, Exception)
    }
    assert own == set(errors.__all__)


@cases("module", ROOMS)
def test_each_room_can_be_imported_first(module: str) -> None:
    """No import works only because another came before it."""
    command = [sys.executable, "-c", f"from {module} import *"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_importing_our_package_imports_only_what_every_application_uses() -> None:
    """No models of endpoints that are not offered, no jobs, no clients, no metrics library."""
    script = (
        "import sys, fastapi, fastapi.responses; before = set(sys.modules)\n"
        "import purgatory.fastapi\n"
        "print(*(set(sys.modules) - before))"
    )
    added = _printed(script)
    unused = {
        "purgatory.client",
        "purgatory.journal",
        "purgatory.jobs",
        "purgatory.signals.redis",
        "purgatory.fastapi.dashboard",
        "purgatory.fastapi.jobs",
        "purgatory.fastapi.keys",
        "httpx",
        "redis",
        "sqlalchemy",
        "alembic",
        "prometheus_client",
    }
    assert not unused & set(added)
    # Of ours, the core and the web edge. More than these want a reason.
    assert sum(name.startswith("purgatory") for name in added) <= 160


def test_an_application_without_jobs_never_imports_them() -> None:
    """Nothing of ours is imported by the first request or fire."""
    script = (
        "import asyncio, sys\n"
        "from fastapi import FastAPI\n"
        "from purgatory import Purgatory\n"
        "from purgatory.fastapi import install\n"
        "before = set(sys.modules)\n"
        "purgatory = Purgatory()\n"
        "install(FastAPI(), purgatory)\n"
        "async def main():\n"
        "    async with purgatory, asyncio.TaskGroup() as group:\n"
        "        group.create_task(purgatory.park('a', timeout=9))\n"
        "        await asyncio.sleep(0)\n"
        "        result = await purgatory.fire('a')\n"
        "        purgatory.statistics()\n"
        "        assert result.completed == 1\n"
        "asyncio.run(main())\n"
        "print(*set(sys.modules) - before)"
    )
    assert not [name for name in _printed(script) if name.startswith("purgatory")]


def test_no_request_for_jobs_imports_anything() -> None:
    """What jobs need is imported where the purgatory gets its store."""
    script = (
        "import asyncio, sys\n"
        "from purgatory import Purgatory\n"
        "from purgatory.jobs import MemoryJobStore\n"
        "purgatory = Purgatory(jobs=MemoryJobStore())\n"
        "purgatory.handled_elsewhere(['mail'])\n"
        "async def main():\n"
        "    async with purgatory:\n"
        "        before = set(sys.modules)\n"
        "        since = purgatory.cursor('a')\n"
        "        job = await purgatory.defer('mail', delay=9, keys=['a'], since=since)\n"
        "        await purgatory.jobs.reschedule(job.id, delay=8)\n"
        "        await purgatory.jobs.run_now(job.id)\n"
        "        await purgatory.jobs.pause()\n"
        "        await purgatory.jobs.resume()\n"
        "        await purgatory.jobs.retry_all()\n"
        "        await purgatory.job(job.id).cancel()\n"
        "        await purgatory.fire('a')\n"
        "    return set(sys.modules) - before\n"
        "print(*asyncio.run(main()))"
    )
    assert not [name for name in _printed(script) if name.startswith("purgatory")]


def _printed(script: str) -> list[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
