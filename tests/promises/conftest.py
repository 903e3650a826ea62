"""Fixtures of all tests of promises: a bench in virtual time, and its leak check."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from purgatory import Purgatory
from purgatory.jobs import owed_fires
from tests.promises.kit import Bench, Process
from tests.unit.conftest import Made, made, make_purgatory  # noqa: F401 # the leak check
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture


@pytest.fixture
async def bench(
    make_purgatory: Callable[..., Purgatory],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[Bench]:
    """A database, and no process yet."""
    caplog.set_level(logging.INFO, "purgatory.jobs")
    bench = Bench(make_purgatory, caplog)
    await bench.database.open()
    async with bench.stack:
        yield bench


@pytest.fixture
async def process(bench: Bench) -> Process:
    """One process with a handler "note", which notes its runs."""
    return await bench.process()


@pytest.fixture
def exact_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pause without jitter before a fire is tried again."""
    for name in ("PENDING_RETRY", "OUTBOX_RETRY"):
        monkeypatch.setattr(
            owed_fires, name, replace(getattr(owed_fires, name), random=lambda: 0.0)
        )
