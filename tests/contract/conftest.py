"""The stores that the contract is tested on.

To add one: a fixture `<name>_job_stores` that returns a MakeJobStores, and <name> in STORES.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from purgatory.jobs import JobLimits
from purgatory.jobs.sql import migrate, migrations, migrations_path
from purgatory.timer import SystemClock
from tests.contract.job_stores import MakeJobStores, MemoryJobStores
from tests.contract.postgresql_server import PostgresqlServer
from tests.contract.redis_job_stores import RedisJobStores
from tests.contract.sql_job_stores import PostgresqlJobStores, SqliteJobStores, SqlJobStores
from tests.contract.world import World
from tests.nightly import NIGHTLY
from tests.valkey_server import ValkeyServer

STORES = ["memory", "sqlite", "postgresql", "redis", "redis_shards"]
# Most statements are the same for both databases, and most scripts for one Redis and several. By
# day, tests of what these do run on one of the two. Those of claims and of what is added, where
# locks and conflicts differ, and the laws have the mark IN_FULL.
ALIKE = {"postgresql", "redis_shards"}


# One loop: what a store does depends on its server, and not on how timers are kept.
@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Run each test on the loop of the standard library."""
    return "asyncio"


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A revision after the tables' first, as a later version of the package has one."""
    name = "purgatory_0002"
    folder = tmp_path / "migrations"
    shutil.copytree(migrations_path().parent, folder)
    (folder / "versions" / f"{name}.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        f"revision, down_revision = '{name}', 'purgatory_0001'\n"
        "def upgrade():\n    op.add_column('purgatory_jobs', sa.Column('later', sa.Text))\n"
        "def downgrade():\n    op.drop_column('purgatory_jobs', 'later')\n"
    )
    monkeypatch.setattr(migrations, "_scripts_path", lambda: folder)
    monkeypatch.setattr(migrations, "_HEAD", name)
    migrations._scripts.cache_clear()
    yield name
    migrations._scripts.cache_clear()


@pytest.fixture
def memory_job_stores() -> MakeJobStores:
    """Jobs in memory."""
    return MemoryJobStores


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file without jobs."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    asyncio.run(migrate(f"sqlite:///{path}"))
    return path


@pytest.fixture
def sqlite_job_stores(sqlite_template: Path, tmp_path: Path) -> MakeJobStores:
    """Jobs in a file."""
    return partial(SqliteJobStores, sqlite_template, tmp_path)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """A server for all tests of this process."""
    server = PostgresqlServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgresql_schemas() -> list[str]:
    """Schemas that are free to be used again."""
    return []


@pytest.fixture
def postgresql_job_stores(
    postgresql_server: PostgresqlServer, postgresql_schemas: list[str]
) -> MakeJobStores:
    """Jobs in a schema of a server."""
    url = postgresql_server.url.replace("postgresql://", "postgresql+asyncpg://")
    return partial(PostgresqlJobStores, url, postgresql_schemas)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """A Valkey for all tests."""
    with ValkeyServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A Valkey for one test, which keeps signals."""
    with ValkeyServer(tmp_path) as running:
        yield running


@pytest.fixture
def lone_redis_server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A Valkey for one test, which may do to it what it likes."""
    with ValkeyServer(tmp_path, appendfsync="always") as server:
        yield server


@pytest.fixture
def redis_job_stores(redis_server: ValkeyServer) -> MakeJobStores:
    """Jobs in a Valkey."""
    return partial(RedisJobStores, redis_server.url)


@pytest.fixture
def redis_shards_job_stores(redis_server: ValkeyServer) -> MakeJobStores:
    """The same under several hash tags."""
    return partial(RedisJobStores, redis_server.url, shards=3)


@pytest.fixture(
    params=[pytest.param(name, marks=[NIGHTLY] if name in ALIKE else []) for name in STORES]
)
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


@pytest.fixture(params=["sqlite", "postgresql"])
def new_database(request: pytest.FixtureRequest) -> SqlJobStores:
    """Each kind of database in turn, by the real clock."""
    make = request.getfixturevalue(f"{request.param}_job_stores")
    stores: SqlJobStores = make(JobLimits(), SystemClock().wall_ms)
    return stores


@pytest.fixture
async def database(new_database: SqlJobStores) -> AsyncIterator[SqlJobStores]:
    """The same, with tables and without jobs."""
    stores = new_database
    await stores.make_ready()
    yield stores
    await stores.close()


@pytest.fixture
async def engine(database: SqlJobStores) -> AsyncIterator[AsyncEngine]:
    """The application's own engine."""
    engine = database.engine()
    yield engine
    await engine.dispose()
