"""The tables' versions: made, changed and dropped, alone or beside an application's own."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    create_mock_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from purgatory.job_errors import StoreNotReadyError, StoreReadOnlyError
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.sql import VERSION_TABLE, metadata, migrate, migrate_in, migrations_path
from purgatory.jobs.sql.__main__ import main
from tests.contract.postgresql_server import PostgresqlServer
from tests.contract.sql_job_stores import HEAD
from tests.step_methods import SqlSteps

ROOT = Path(__file__).parents[2]
NAMES = [table.name for table in metadata.sorted_tables]


@pytest.fixture(params=["sqlite", "postgresql"])
def any_server(request: pytest.FixtureRequest) -> PostgresqlServer | None:
    """The server, where there is one."""
    is_sqlite = request.param == "sqlite"
    server: PostgresqlServer | None = (
        None if is_sqlite else request.getfixturevalue("postgresql_server")
    )
    return server


@pytest.fixture
async def url(any_server: PostgresqlServer | None, tmp_path: Path) -> URL:
    """The URL of an empty database."""
    if any_server is None:
        return make_url(f"sqlite+aiosqlite:///{tmp_path / 'jobs.db'}")
    server = make_url(any_server.url).set(drivername="postgresql+asyncpg")
    name = f"test_{id(tmp_path)}"
    engine = create_async_engine(server, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
        await connection.execute(text(f"CREATE DATABASE {name}"))
    await engine.dispose()
    return server.set(database=name)


async def run(url: URL, work: Any) -> Any:
    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


def tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


async def works(url: URL) -> None:
    """A store takes a job and has it."""
    store = SqlSteps(url)
    await store.open()
    spec = JobSpec.of("note", wall_ms=0, delay=1, keys=["k"])
    await store.add([spec])
    assert [job and job.id for job in await store.get([spec.id])] == [spec.id]
    await store.close()


async def test_the_migrations_make_the_tables_that_the_code_has(url: URL) -> None:
    """Column by column, and index by index."""
    await migrate(url)

    def differences(connection: Connection) -> Any:
        options = {
            "compare_type": True,
            "include_name": lambda name, kind, parents: kind != "table" or name in NAMES,
        }
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)

    def conditions(connection: Connection) -> list[Any]:
        found = [index for name in NAMES for index in inspect(connection).get_indexes(name)]
        return sorted((index["name"], index["column_names"], index["unique"]) for index in found)

    assert await run(url, differences) == []
    migrated = await run(url, conditions)
    await migrate(url, "base")
    await run(url, metadata.create_all)
    assert await run(url, conditions) == migrated


async def test_the_tables_are_made_and_dropped(url: URL) -> None:
    """As often as one likes; the application's own stay."""
    await run(url, lambda connection: connection.execute(text("CREATE TABLE orders (id int)")))
    for _ in range(2):
        await migrate(url)
        await migrate(url)
        assert await run(url, tables) == {*NAMES, VERSION_TABLE, "orders"}
        await works(url)
        await migrate(url, "base")
        assert await run(url, tables) == {VERSION_TABLE, "orders"}


async def test_several_may_migrate_at_once(url: URL) -> None:
    """One does it, the others wait."""
    await asyncio.gather(*(migrate(url) for _ in range(4)))
    await works(url)


async def test_a_sqlite_file_that_another_connection_sets_up_is_tried_again(
    tmp_path: Path,
) -> None:
    """SQLite does not wait for it, and several processes may start on a new file."""
    other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE orders (id)")
    other.execute("BEGIN")
    other.execute("SELECT * FROM orders").fetchall()
    errors: list[Any] = []

    def on_error(context: Any) -> None:
        errors.append(context.original_exception)
        other.close()

    event.listen(Engine, "handle_error", on_error)
    try:
        await migrate(f"sqlite:///{tmp_path / 'jobs.db'}")
    finally:
        event.remove(Engine, "handle_error", on_error)
        other.close()
    assert [str(error) for error in errors] == ["database is locked"]


async def test_a_database_without_tables_says_how_to_make_them(url: URL) -> None:
    """And the command does it."""
    store = SqlSteps(url)
    with pytest.raises(StoreNotReadyError, match=r"python -m purgatory\.jobs\.sql URL"):
        await store.open()
    # Not as an argument, which the list of processes shows.
    environment = os.environ | {"PURGATORY_JOBS_URL": url.render_as_string(hide_password=False)}
    arguments = [sys.executable, "-m", "purgatory.jobs.sql"]
    await asyncio.to_thread(subprocess.run, arguments, check=True, cwd=ROOT, env=environment)
    await store.open()
    await store.close()
    await works(url)


@pytest.mark.parametrize(
    ("revision", "complaint"),
    [("purgatory_9999", "newer than this version"), ("other", "no tables for jobs")],
)
async def test_tables_of_another_version_are_refused(
    url: URL, revision: str, complaint: str
) -> None:
    """Rather than written to."""
    await migrate(url)
    change = text(f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'")
    await run(url, lambda connection: connection.execute(change))
    with pytest.raises(StoreNotReadyError, match=complaint):
        await SqlSteps(url).open()


async def test_two_versions_at_once_are_refused(url: URL) -> None:
    """Such as where one of two ways to migrate was used to upgrade, and the other before."""
    await migrate(url)
    also = text(f"INSERT INTO {VERSION_TABLE} VALUES ('purgatory_9999')")
    await run(url, lambda connection: connection.execute(also))
    with pytest.raises(StoreNotReadyError, match=f"{HEAD}, purgatory_9999"):
        await SqlSteps(url).open()


async def test_tables_of_a_later_version_are_not_migrated(url: URL) -> None:
    """As the service would do at its start, after it was put back to an earlier version."""
    await migrate(url)
    change = text(f"UPDATE {VERSION_TABLE} SET version_num = 'purgatory_9999'")
    await run(url, lambda connection: connection.execute(change))
    for revision in ("head", "base"):
        with pytest.raises(StoreNotReadyError, match="newer than this version"):
            await migrate(url, revision)


async def test_tables_that_vanish_are_said_to_be_missing(url: URL) -> None:
    """Also once it is open."""
    await migrate(url)
    store = SqlSteps(url)
    await store.open()
    await migrate(url, "base")
    with pytest.raises(StoreNotReadyError, match="migrate"):
        await store.counts()
    with pytest.raises(StoreNotReadyError, match="migrate"):
        await store.add([JobSpec.of("note", wall_ms=0, delay=1)])
    await store.close()


async def test_an_application_runs_our_scripts_with_its_own_alembic(
    url: URL, tmp_path: Path
) -> None:
    """By version_locations; its own tables are compared without ours."""
    mine = tmp_path / "alembic"
    (mine / "versions").mkdir(parents=True)
    (mine / "env.py").write_text(
        "from alembic import context\n"
        "connection = context.config.attributes['connection']\n"
        "context.configure(connection=connection)\n"
        "context.run_migrations()\n"
    )
    (mine / "versions" / "orders.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        "revision = 'orders_1'\ndown_revision = None\n"
        "def upgrade():\n    op.create_table('orders', sa.Column('id', sa.Integer))\n"
        "def downgrade():\n    op.drop_table('orders')\n"
    )
    config = Config()
    config.set_main_option("script_location", str(mine))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", f"{mine / 'versions'}:{migrations_path()}")

    def upgrade(connection: Connection) -> None:
        config.attributes["connection"] = connection
        command.upgrade(config, "heads")

    await run(url, upgrade)
    await works(url)
    own = MetaData()
    Table("orders", own, Column("id", Integer))

    def differences(connection: Connection) -> Any:
        def is_mine(item: Any, name: str | None, kind: str, *rest: Any) -> bool:
            return kind != "table" or name not in metadata.tables

        context = MigrationContext.configure(connection, opts={"include_object": is_mine})
        return compare_metadata(context, own)

    assert await run(url, differences) == []

    def downgrade(connection: Connection) -> None:
        config.attributes["connection"] = connection
        command.downgrade(config, "purgatory@base")

    await run(url, downgrade)
    assert await run(url, tables) == {"orders", "alembic_version"}


@pytest.mark.parametrize("any_server", ["postgresql"], indirect=True)
async def test_a_server_that_is_no_primary_any_more_is_left(url: URL) -> None:
    """With every connection to it: its name may stand for another by now."""

    async def let_new_sessions(what: str) -> None:
        setting = f"ALTER DATABASE {url.database} SET default_transaction_read_only = {what}"
        await run(
            url.set(database="postgres"), lambda connection: connection.execute(text(setting))
        )

    await migrate(url)
    store = SqlSteps(url)
    await let_new_sessions("on")
    await store.open()
    await asyncio.gather(*(store.counts() for _ in range(5)))
    with pytest.raises(StoreReadOnlyError):
        await store.add([JobSpec.of("note", wall_ms=0, delay=1)])
    await let_new_sessions("off")
    await store.add([JobSpec.of("note", wall_ms=0, delay=1)])
    await store.close()


@pytest.mark.parametrize("wrong", [{"database": "none"}, {"username": "nobody"}], ids=str)
async def test_a_server_that_lets_nobody_in_is_not_ready(
    postgresql_server: PostgresqlServer, wrong: dict[str, str]
) -> None:
    """It says whom it does not know: nothing of it is a fault of what was asked."""
    url = make_url(postgresql_server.url).set(**wrong)  # type: ignore[arg-type] # one of its fields
    with pytest.raises(
        StoreNotReadyError, match=f"refuses the login.*{next(iter(wrong.values()))}"
    ):
        await SqlSteps(url).open()


async def test_a_database_that_lacks_characters_is_not_ready(
    postgresql_server: PostgresqlServer,
) -> None:
    """One key that it cannot store would fail the fires of others, which share its transaction."""
    url = make_url(postgresql_server.url).set(drivername="postgresql+asyncpg")
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(
            text(
                "CREATE DATABASE latin TEMPLATE template0"
                " ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
            )
        )
    await engine.dispose()
    latin = url.set(database="latin")
    with pytest.raises(StoreNotReadyError, match=r"encoding LATIN1.*ENCODING 'UTF8'"):
        await migrate(latin)
    with pytest.raises(StoreNotReadyError, match=r"encoding LATIN1.*ENCODING 'UTF8'"):
        await SqlSteps(latin).open()


def test_no_sql_can_be_written_without_a_connection() -> None:
    """`alembic upgrade --sql` has a stand-in, and the error says so."""
    stand_in: Any = create_mock_engine("sqlite://", lambda statement: None)
    with pytest.raises(TypeError, match=r"connection is .*MockConnection.*`--sql`"):
        migrate_in(stand_in)


async def test_only_what_keeps_jobs_is_taken() -> None:
    """Memory forgets, and other databases are not tested."""
    with pytest.raises(ValueError, match="name a file"):
        SqlSteps("sqlite://")
    engine: AsyncEngine = create_async_engine("sqlite+aiosqlite:///:memory:")
    with pytest.raises(ValueError, match="MemoryJobStore"):
        SqlSteps(engine)
    with pytest.raises(ValueError, match=r"'postgresql://\*\*\*@host:x/name' is not the URL"):
        SqlSteps("postgresql://user:secret@host:x/name")
    for driver in ("postgresql+psycopg", "postgresql+psycopg2", "sqlite+pysqlite"):
        with pytest.raises(ValueError, match=r"is not the URL.*another driver takes an Async"):
            SqlSteps(f"{driver}://user:secret@host/name")
    wrong: list[Any] = [create_engine("sqlite:///jobs.db"), b"sqlite:///jobs.db", Path("jobs.db")]
    for argument in wrong:
        with pytest.raises(TypeError, match=r"url_or_engine is of .*: give a URL.* or an Async"):
            SqlSteps(argument)
    with pytest.raises(ValueError, match="mysql cannot be a database of jobs"):
        SqlSteps("mysql+aiomysql://host/name")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["mysql://host/name"], "mysql cannot be a database of jobs"),
        (["postgres://host/name"], "which SQLAlchemy does not know: write postgresql:"),
        (["nonsense"], "'nonsense' is not the URL of a database"),
        (["sqlite:///{folder}/jobs.db", "1.0"], "there is no revision '1.0'"),
        (["sqlite:///{folder}/none/jobs.db"], "there is no folder"),
    ],
    ids=["vendor", "postgres", "URL", "revision", "folder"],
)
def test_what_the_command_cannot_do_it_says_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    """With status 1, and no traceback."""
    given = [argument.format(folder=tmp_path) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["purgatory.jobs.sql", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    # Python prints it to standard error, and exits with 1.
    assert isinstance(ended.value.code, str) and "\n" not in ended.value.code
    assert complaint in ended.value.code


async def test_tables_of_an_earlier_version_are_refused_until_they_are_migrated(
    url: URL, next_revision: str
) -> None:
    """With the way out; an application's migration takes them back, if it says so."""
    earlier = "purgatory_0001"
    await migrate(url, earlier)
    with pytest.raises(
        StoreNotReadyError, match=f"at revision {earlier}, .* needs {next_revision}: run"
    ):
        await SqlSteps(url).open()
    await migrate(url)
    await run(url, lambda connection: migrate_in(connection, earlier))
    await works(url)
    await run(url, lambda connection: migrate_in(connection, earlier, downgrade=True))
    with pytest.raises(StoreNotReadyError, match=f"at revision {earlier}"):
        await SqlSteps(url).open()
