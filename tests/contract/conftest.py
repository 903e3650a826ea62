"""The stores that the contract is tested on.

To add one: a fixture `<name>_job_stores` that returns a MakeJobStores, and <name> in STORES.
"""

from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from tests.contract.job_stores import MakeJobStores, MemoryJobStores
from tests.contract.redis_job_stores import RedisJobStores
from tests.contract.redis_server import RedisServer
from tests.contract.world import World

STORES = ["memory", "redis", "redis_shards"]


@pytest.fixture(
    scope="module",  # as in the outer conftest
    # One loop: what a store does depends on its server, and not on how timers are kept.
    params=[pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio")],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run each test on the loop of the standard library."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


@pytest.fixture
def memory_job_stores() -> MakeJobStores:
    """Jobs in memory."""
    return MemoryJobStores


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Valkey for all tests."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture
def redis_job_stores(redis_server: RedisServer) -> MakeJobStores:
    """Jobs in a Valkey."""
    return partial(RedisJobStores, redis_server.url)


@pytest.fixture
def redis_shards_job_stores(redis_server: RedisServer) -> MakeJobStores:
    """The same under several hash tags."""
    return partial(RedisJobStores, redis_server.url, shards=3)


@pytest.fixture(params=STORES)
def make_job_stores(request: pytest.FixtureRequest) -> MakeJobStores:
    """Each kind of store in turn."""
    make: MakeJobStores = request.getfixturevalue(f"{request.param}_job_stores")
    return make


@pytest.fixture
async def world(make_job_stores: MakeJobStores) -> AsyncIterator[World]:
    """Two processes on one empty set of jobs."""
    world = await World(make_job_stores).open()
    yield world
    await world.close()
