"""A server with delayed jobs, on both ways to serve."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.jobs import JobLimits
from tests.acceptance.jobs.application import Store, create_app
from tests.acceptance.thread_server import KINDS, each_kind


@pytest.fixture
def store() -> Store:
    return Store(limits=JobLimits(max_waiting=50_000))


@pytest.fixture
def purgatory(store: Store) -> Purgatory:
    return Purgatory(jobs=store)


@pytest.fixture
def app(purgatory: Purgatory) -> FastAPI:
    return create_app(purgatory)


kind = each_kind(KINDS[0], KINDS[2])
