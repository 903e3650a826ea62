"""The coordinator as a service: `uvicorn --factory examples.join_group.app:create_app`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from examples.join_group.coordinator import Coordinator
from examples.join_group.endpoints import router
from examples.join_group.group_leases import GroupLeases
from examples.join_group.problems import add_group_problems
from examples.join_group.schemas import MAX_BODY_BYTES
from examples.join_group.settings import CoordinatorSettings
from purgatory import Limits, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, install
from purgatory.ownership import LeaseStore, Ownership


def create_app(
    settings: CoordinatorSettings | None = None,
    *,
    purgatory: Purgatory | None = None,
    lease_store: LeaseStore | None = None,
) -> FastAPI:
    """Return a coordinator without groups, by default with the settings of the environment.

    A group is kept in the memory of one process: of the only one, or, with `redis_url` or a
    `lease_store`, of the worker that owns it. When that worker stops, parked members get an error
    that tells them to join again.
    """
    settings = CoordinatorSettings.from_environment() if settings is None else settings
    if purgatory is None:
        limits = Limits(max_parked=settings.max_operations)
        purgatory = Purgatory("join-group", limits=limits)
    if lease_store is None and settings.redis_url:
        lease_store = _redis_lease_store(settings)
    leases = None
    if lease_store is not None:
        ownership = Ownership(
            lease_store,
            settings.address,
            lease_ms=round(settings.lease * 1000),
            # A worker that is cut off says so before its clients give up waiting for it.
            timeout=settings.lease / 2,
            clock=purgatory.clock,
        )
        leases = GroupLeases(ownership)
    app = FastAPI(
        title="Group coordinator",
        max_body_size=MAX_BODY_BYTES,
        lifespan=None if leases is None else _lifespan,
    )
    app.state.leases = leases
    app.state.coordinator = Coordinator(purgatory, settings, leases)
    app.include_router(router)
    add_group_problems(app)
    install(app, purgatory, endpoints={"statistics"}, authorize=ALLOW_ANYONE, problem_details="app")
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Own groups while the application runs; release them, so that others need not wait."""
    async with app.state.leases.ownership:
        yield


def _redis_lease_store(settings: CoordinatorSettings) -> LeaseStore:
    # Not at the top: a single worker needs no redis-py.
    from purgatory.ownership.redis import RedisLeaseStore

    return RedisLeaseStore(settings.redis_url, "join-group")
