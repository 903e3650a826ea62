"""Fixtures for every test, and how the tests are handed out."""

import gc
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

# Services that tests start keep their jobs to themselves, and leave no files behind.
os.environ.setdefault("PURGATORY_JOBS_URL", "memory://")

from tests.scheduling import TogetherScheduling, is_late


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
def logging_of_uvicorn() -> Iterator[None]:
    """Undo what a server in this process has set: the log of the next test is to be whole."""
    loggers = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access")]
    before = [(logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest; else the order stays."""
    items.sort(key=lambda item: is_late(item.nodeid))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from the tests themselves: each collection looked at thousands."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let the exit collect what was frozen, as some extension modules check."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TogetherScheduling | None:
    """Hand out the tests in our own way, which is a variant of --dist=loadgroup."""
    if config.getvalue("dist") != "loadgroup":
        return None
    return TogetherScheduling(config, log)
