"""Our tables in the history of an application's own Alembic: one head, nothing in our folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.schema import CreateSchema, DropSchema

from purgatory.jobs.sql import (
    VERSION_TABLE,
    SqlJobStore,
    metadata,
    migrate,
    migrate_in,
    migrations_path,
)
from tests.contract.postgresql_server import PostgresqlServer

ENV = """
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table
from purgatory.jobs.sql import VERSION_TABLE, metadata as jobs

own = MetaData()
Table("orders", own, Column("id", Integer))
Table("customers", own, Column("id", Integer))

def include_object(item, name, kind, reflected, compare_to):
    return kind != "table" or name not in {*jobs.tables, VERSION_TABLE}

connection = context.config.attributes["connection"]
context.configure(
    connection=connection, target_metadata=own, include_object=include_object
)
with context.begin_transaction():
    context.run_migrations()
"""
ORDERS = """
import sqlalchemy as sa
from alembic import op
from purgatory.jobs.sql import migrate_in
revision, down_revision = "{revision}", {before!r}

def upgrade():
    migrate_in(op.get_bind(), "{jobs}")
    op.create_table("orders{number}", sa.Column("id", sa.Integer))

def downgrade():
    op.drop_table("orders{number}")
    migrate_in(op.get_bind(), "{jobs_before}", downgrade=True)
"""


@pytest.fixture
def config(tmp_path: Path, next_revision: str) -> Config:
    """An application with two migrations, which bring our tables to a revision each."""
    versions = tmp_path / "alembic" / "versions"
    versions.mkdir(parents=True)
    (tmp_path / "alembic" / "env.py").write_text(ENV)
    mako = migrations_path().parent / "script.py.mako"
    (tmp_path / "alembic" / mako.name).write_text(mako.read_text())
    first = {"revision": "app_1", "before": None, "number": "", "jobs_before": "base"}
    (versions / "app_1.py").write_text(ORDERS.format(**first, jobs="purgatory_0001"))
    second = {"revision": "app_2", "before": "app_1", "number": 2, "jobs_before": "purgatory_0001"}
    (versions / "app_2.py").write_text(ORDERS.format(**second, jobs="head"))
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "alembic"))
    config.set_main_option("path_separator", "os")
    return config


def run(config: Config, engine: Engine, step: Any, *arguments: Any, **options: Any) -> Any:
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        return step(config, *arguments, **options)


def tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


def test_one_head_and_one_history(config: Config, tmp_path: Path) -> None:
    """`upgrade head`, `revision --autogenerate`, `downgrade`: as without our tables."""
    ours = sorted(migrations_path().iterdir())
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    run(config, engine, command.upgrade, "head")
    with engine.connect() as connection:
        expected = {*metadata.tables, VERSION_TABLE, "alembic_version", "orders", "orders2"}
        assert tables(connection) == expected
    run(config, engine, command.revision, "customers", autogenerate=True)
    [written] = (tmp_path / "alembic" / "versions").glob("*_customers.py")
    assert "'customers'" in written.read_text() and "purgatory" not in written.read_text()
    assert sorted(migrations_path().iterdir()) == ours
    assert len(ScriptDirectory.from_config(config).get_heads()) == 1
    run(config, engine, command.downgrade, "app_1")
    with engine.connect() as connection:
        version = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
        assert version == "purgatory_0001"
    run(config, engine, command.downgrade, "base")
    with engine.connect() as connection:
        assert tables(connection) == {VERSION_TABLE, "alembic_version"}
    engine.dispose()


async def test_a_store_on_tables_that_an_application_made(config: Config, tmp_path: Path) -> None:
    """It finds their revision; migrating again changes nothing."""
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    run(config, engine, command.upgrade, "head")
    engine.dispose()
    store = SqlJobStore(f"sqlite:///{tmp_path / 'app.db'}")
    await store.open()
    await store.close()
    await migrate(f"sqlite:///{tmp_path / 'app.db'}")


async def test_migrate_within_an_env_of_the_application(config: Config, tmp_path: Path) -> None:
    """`await migrate()` on a database of its own leaves the application's migration as it is."""
    folder = Path(config.get_main_option("script_location") or "")
    jobs = tmp_path / "jobs.db"
    call = f"import asyncio\nfrom purgatory.jobs.sql import migrate\nasyncio.run(migrate('sqlite:///{jobs}'))"
    (folder / "env.py").write_text(ENV.replace("connection =", f"{call}\nconnection ="))
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    await asyncio.to_thread(run, config, engine, command.upgrade, "head")
    with engine.connect() as connection:
        assert {"orders", "orders2"} <= tables(connection)
    engine.dispose()
    store = SqlJobStore(f"sqlite:///{jobs}")
    await store.open()
    await store.close()


async def test_several_databases_in_one_process_at_once(
    tmp_path: Path, postgresql_server: PostgresqlServer
) -> None:
    """Each of them gets its tables, by whichever of the two functions."""

    def within(file: Path) -> None:
        engine = create_engine(f"sqlite:///{file}")
        with engine.begin() as connection:
            migrate_in(connection)
        engine.dispose()

    async def within_a_task(file: Path) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
        async with engine.begin() as connection:
            await connection.run_sync(migrate_in)
        await engine.dispose()

    files = [tmp_path / f"{number}.db" for number in range(6)]
    await asyncio.gather(
        asyncio.to_thread(within, files[0]),
        within_a_task(files[1]),
        *(migrate(f"sqlite:///{file}") for file in (*files[2:], files[5])),
        migrate(postgresql_server.url),
    )
    for url in (*(f"sqlite:///{file}" for file in files), postgresql_server.url):
        store = SqlJobStore(url)
        await store.open()
        await store.close()


async def test_a_schema_of_its_own(postgresql_server: PostgresqlServer) -> None:
    """By the search path of an engine, for the tables and for the store."""
    url = make_url(postgresql_server.url).set(drivername="postgresql+asyncpg")
    path = {"server_settings": {"search_path": "own_schema"}}
    engine = create_async_engine(url, connect_args=path)
    async with engine.begin() as connection:
        await connection.execute(CreateSchema("own_schema", if_not_exists=True))
    await migrate(engine)
    store = SqlJobStore(engine)
    await store.open()
    assert (await store.counts()).waiting == 0
    await store.close()
    async with engine.connect() as connection:
        in_schema = text(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'own_schema'"
            " AND tablename LIKE 'purgatory%'"
        )
        assert await connection.scalar(in_schema) == len(metadata.tables) + 1
        await connection.execute(DropSchema("own_schema", cascade=True))
        await connection.commit()
    await engine.dispose()
