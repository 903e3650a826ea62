"""Fixtures for every test, and how the tests are handed out."""

import atexit
import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Services that tests start keep their jobs to themselves, and leave no files behind.
os.environ.setdefault("PURGATORY_JOBS_URL", "memory://")

from tests.nightly import by_night, is_left_out
from tests.scheduling import TogetherScheduling, is_late

# Tests start hundreds of processes, each of which would compile all sources anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# httpx looks for it with each request to an application, half a millisecond if it is not there.
if find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment] # "not there" for the import system

# A shell ignores SIGINT for what it starts in the background, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `make nightly` and HYPOTHESIS_PROFILE=thorough try harder. No deadlines: the machine may be busy.
settings.register_profile(
    "quick",
    deadline=None,
    max_examples=by_night(200, 30),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", settings.get_profile("quick"), max_examples=2_000, stateful_step_count=100
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# Both loops on purpose: uvloop keeps timers in its own way, and a timer is what we are.
@pytest.fixture(
    scope="module",  # as in anyio: a fixture of a module may be async, and asks for its loop
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run each async test on the loop of the standard library and on uvloop."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


@pytest.fixture(autouse=True)
def logging_of_servers() -> Iterator[None]:
    """Undo what a server in this process has set: the log of the next test is to be whole."""
    names = ("purgatory", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave garbage alone: what collection makes is kept, and was looked at again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for the night; begin with what takes longest; else the order stays."""
    left_out = [item for item in items if is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not is_left_out(item)]
    items.sort(key=lambda item: is_late(item.nodeid))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from the tests themselves: each collection looked at thousands."""
    gc.freeze()
    # The exit collects them, as some extension modules check; pytest, before it, need not.
    atexit.register(gc.unfreeze)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Note the status, by which `.ci/run` tells whether all tests were run: make does not say."""
    cache = getattr(session.config, "cache", None)
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set("session/exitstatus", int(exitstatus))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TogetherScheduling | None:
    """Hand out the tests in our own way, which is a variant of --dist=loadgroup."""
    if config.getvalue("dist") != "loadgroup":
        return None
    return TogetherScheduling(config, log)
