"""The names that users import: a new one is a decision, made here."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

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
        JobNotFoundError JobOutcome JobState JobStore JobsNotFiredError MemoryJobStore
        RetryJobError RetryPolicy StoreError StoreUnavailableError UnknownHandlerError
        WorkerSettings
    """,
    "purgatory.testing": "AutojumpEventLoop Clock DeadlockError MockClock current_clock",
}
MAXIMUM = {"purgatory": 25, "purgatory.fastapi": 22, "purgatory.jobs": 25, "purgatory.testing": 5}
ROOMS = [
    "purgatory.errors",
    "purgatory.jobs.callbacks",
    "purgatory.jobs.clients",
    "purgatory.jobs.handlers",
    "purgatory.jobs.model",
    "purgatory.jobs.stores",
    "purgatory.jobs.worker",
    "purgatory.operations",
    "purgatory.ownership",
    "purgatory.signals",
    "purgatory.timer",
]


@pytest.mark.parametrize("module", NAMES)
def test_the_exported_names_are_these(module: str) -> None:
    """And few: who adds one decides that it belongs here, rather than in a room."""
    exported = importlib.import_module(module).__all__
    assert sorted(exported) == sorted(NAMES[module].split())
    assert len(exported) <= MAXIMUM[module]


@pytest.mark.parametrize("module", [*NAMES, *ROOMS])
def test_every_exported_name_is_there_and_documented(module: str) -> None:
    """`__all__` is the interface, for people as for type checkers."""
    imported = importlib.import_module(module)
    assert len(imported.__all__) == len(set(imported.__all__))
    for name in imported.__all__:
        item = getattr(imported, name)
        assert not (inspect.isclass(item) or inspect.isfunction(item)) or item.__doc__, name


@pytest.mark.parametrize("module", [*NAMES, "purgatory.pipeline"])
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


@pytest.mark.parametrize("module", ROOMS)
def test_each_room_can_be_imported_first(module: str) -> None:
    """No import works only because another came before it."""
    command = [sys.executable, "-c", f"from {module} import *"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_importing_our_package_imports_only_what_every_application_uses() -> None:
    """No models of endpoints that are not offered, no stores, no clients, no metrics library."""
    script = (
        "import sys, fastapi, fastapi.responses; before = set(sys.modules)\n"
        "import purgatory.fastapi\n"
        "print(*(set(sys.modules) - before))"
    )
    command = [sys.executable, "-c", script]
    added = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    unused = {
        "purgatory.client",
        "purgatory.journal",
        "purgatory.jobs.sql",
        "purgatory.jobs.redis",
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
    # Of ours, most are the core and its jobs. More than these want a reason.
    assert sum(name.startswith("purgatory") for name in added) <= 230
