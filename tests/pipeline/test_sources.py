"""The format "purgatory": the journal in files and in Redis, jobs in SQL and in Redis."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual
from pyspark.sql.types import StructType

from purgatory.jobs import JobState
from purgatory.jobs.model.steps import Cancel, Claim, Finish, RunNow, Start
from purgatory.jobs.sql import migrate
from purgatory.journal import ParquetFiles
from purgatory.pipeline import EVENT_SCHEMA, job_events, operation_outcomes
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.outcomes.journal_files import OnBadFile
from purgatory.pipeline.schedule import JobAddress, opened
from purgatory.pipeline.schemas import EVENT_SCHEMA as EVENTS
from purgatory.pipeline.source import PurgatoryDataSource
from purgatory.pipeline.source.journal_source import (
    Files,
    JournalReader,
    JournalWriter,
)
from purgatory.pipeline.spark.folder import LocalFolder
from purgatory.timer import SystemClock
from tests.cases import cases
from tests.contract.postgresql_server import PostgresqlServer
from tests.journal_batches import complete_files
from tests.nightly import NIGHTLY
from tests.pipeline.synthetic import Written, write
from tests.synthetic_journal import inject
from tests.valkey_server import ValkeyServer

OPERATIONS = 400


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("source") / "a journal", operations=OPERATIONS)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    server = PostgresqlServer()
    yield server.url
    server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=NIGHTLY), "redis"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> JobAddress:
    """An empty store of each kind."""
    if request.param == "redis":
        server: ValkeyServer = request.getfixturevalue("valkey")
        return JobAddress(url=server.url, prefix=tmp_path.name, shards=2)
    url = f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres")
        asyncio.run(migrate(url, "base"))
    asyncio.run(migrate(url))
    return JobAddress(url=url)


def options_of(address: JobAddress) -> dict[str, str]:
    return {"table": "jobs", "prefix": address.prefix, "shards": str(address.shards)}


def crossed(sent: Any) -> Any:
    """Return what arrives in another process."""
    return pickle.loads(pickle.dumps(sent))


def load(place: object, *filters: Filter, columns: str = "", **options: str) -> pa.Table:
    """Read as Spark does: the reader and each part of what it reads cross to other processes."""
    source = PurgatoryDataSource({"path": str(place), **options})
    schema = source.schema()
    if columns:
        schema = StructType([schema[name] for name in columns.split()])
    reader = source.reader(schema)
    if filters:
        list(reader.pushFilters(list(filters)))
    there, parts = crossed(reader), map(crossed, reader.partitions())
    batches = [batch for part in parts for batch in there.read(part)]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def save(place: object, rows: pa.Table, **options: str) -> None:
    """Write as Spark does, by one task."""
    source = PurgatoryDataSource({"path": str(place), **options})
    writer = source.writer(EVENT_SCHEMA, overwrite=False)
    writer.commit([crossed(crossed(writer).write(iter(rows.to_batches())))])


def events(written: Written) -> pa.Table:
    """The same files, as Arrow reads them."""
    files = [pq.ParquetFile(path).read() for path in written.folder.rglob("*.parquet")]
    return pa.concat_tables(files).cast(EVENTS)


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def test_spark_reads_and_adds_files(spark: SparkSession, small: Written, tmp_path: Path) -> None:
    """Every row and column, as Spark's own reader has them; with filters, and of fewer columns."""
    table = spark.read.schema(EVENT_SCHEMA).parquet(*map(str, small.folder.rglob("*.parquet")))
    table.write.format("purgatory").mode("append").save(str(tmp_path))
    found = spark.read.format("purgatory").load(f"file://{str(tmp_path).replace(' ', '%20')}")
    assert found.schema.names == EVENT_SCHEMA.names
    assert sorted(map(repr, found.collect())) == sorted(map(repr, table.collect()))
    condition = (
        (F.col("at") >= "2026-11-20 07:00:00")
        & (F.col("kind") == "watch")
        & F.col("event").isin("fired", "expired")
        & F.col("operation_id").startswith("00")
        & F.col("completed_at").isNotNull()
    )
    columns = "at timestamp, completed_at timestamp, event string, kind string, operation_id string"
    some = spark.read.format("purgatory").schema(columns).load(str(tmp_path))
    few = some.where(condition).collect()
    assert few
    assert sorted(few) == sorted(table.where(condition).select(*some.columns).collect())


def test_the_journal_s_files_are_a_table(small: Written) -> None:
    """Every row, every column; or fewer of them, in the order that is given."""
    assert rows(load(small.folder)) == rows(events(small))
    some = load(f"file://{str(small.folder).replace(' ', '%20')}", columns="kind at")
    assert rows(some) == rows(events(small).select(["kind", "at"]))


@cases(
    "column, value, sentence",
    [
        ("event", pa.scalar("exploded"), r"event exploded, .*: event is 'exploded': choose from"),
        ("at", pa.scalar(None, EVENTS.field("at").type), r"worker worker-\d: at is null"),
    ],
)
def test_a_row_that_is_no_event_is_refused(
    small: Written, tmp_path: Path, column: str, value: pa.Scalar, sentence: str
) -> None:
    """By its identifier; nothing of its task is written."""
    table = pq.ParquetFile(next(small.folder.rglob("*.parquet"))).read().cast(EVENTS)
    values = [*table[column].to_pylist()[:5], value.as_py(), *table[column].to_pylist()[6:]]
    place = table.schema.get_field_index(column)
    wrong = table.set_column(place, column, pa.array(values, value.type))
    operation = table["operation_id"][5].as_py()
    with pytest.raises(ValueError, match=rf"operation_id {operation}, .*{sentence}"):
        JournalWriter(str(tmp_path)).write(iter(wrong.to_batches()))
    assert not list(tmp_path.rglob("*.parquet*"))


def test_what_is_hidden_or_no_file_is_passed_over(tmp_path: Path) -> None:
    """As the command `outcomes` does: a folder may be hidden too, or named like a file."""
    names = ("a.parquet", ".b.parquet", "_c/d.parquet", ".e/f/g.parquet", "h.parquet/i.parquet")
    for path in (tmp_path / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "j.parquet").symlink_to("gone")
    found = [file.path for file in LocalFolder(str(tmp_path)).files(".parquet")]
    assert found == ["a.parquet", "h.parquet/i.parquet"]


def test_a_folder_that_is_deleted_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As whoever tidies up deletes whole hours."""
    for name in ("hour=01/gone.parquet", "hour=02/there.parquet"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    scandir = os.scandir

    def scan(path: str | Path) -> Any:
        if Path(path).name == "hour=01":
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", scan)
    found = LocalFolder(str(tmp_path)).files(".parquet")
    assert [file.path for file in found] == ["hour=02/there.parquet"]


def test_filters_leave_files_and_rows_unread(small: Written) -> None:
    """An hour and a kind: no file of an earlier hour is read, nor a row of another kind."""
    late = GreaterThanOrEqual(("at",), datetime(2026, 11, 20, 7, tzinfo=UTC))
    found = load(small.folder, late, EqualTo(("kind",), "watch"))
    hour = [row for row in load(small.folder).to_pylist() if row["at"] >= late.value]
    assert rows(found) == sorted(repr(row) for row in hour if row["kind"] == "watch")
    reader = JournalReader(str(small.folder), EVENTS, OnBadFile.REFUSE)
    assert list(reader.pushFilters([late])) == [late]
    paths = [
        path for files in reader.partitions() if isinstance(files, Files) for path in files.paths
    ]
    assert paths
    assert not [path for path in paths if "hour=06" in path]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    """Refused, or left out where that is asked for."""
    written = write(tmp_path / "journal", operations=50)
    whole = rows(events(written))
    for fault in ("truncated", "empty", "wrong-schema", "unknown-version", "half-written"):
        inject(written.folder, fault)
    with pytest.raises(PipelineError, match=r"zz-[\w-]+\.parquet"):
        load(written.folder)
    assert rows(load(written.folder, onBadFile="skip")) == whole


@cases(
    "options, said",
    [
        ({"table": "job"}, "give one of events, jobs"),
        ({"tabel": "jobs"}, "unknown option"),
        ({"path": "sqlite:///x", "table": "jobs", "tasks": "many"}, "give a whole number"),
        ({"path": "ftp://bucket/journal"}, 'has the scheme "ftp"'),
        ({"path": "mysql://server", "table": "jobs"}, "no job store"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, str], said: str) -> None:
    """With what to give instead."""
    source = PurgatoryDataSource({"path": "/nowhere", **options})
    with pytest.raises((ValueError, PipelineError), match=said):
        source.reader(source.schema()).partitions()


def test_what_is_written_is_a_journal(small: Written, tmp_path: Path) -> None:
    """Hour by hour, added to what is there; and never in place of it."""
    for _ in range(2):
        save(tmp_path, events(small))
    assert rows(load(tmp_path)) == rows(pa.concat_tables([events(small)] * 2))
    hours = {path.parent.name for path in small.folder.rglob("*.parquet")}
    assert {path.parent.name for path in tmp_path.rglob("*.parquet")} == hours
    assert not list(tmp_path.rglob(".*.tmp"))
    with pytest.raises(ValueError, match="append"):
        PurgatoryDataSource({"path": str(tmp_path)}).writer(EVENT_SCHEMA, overwrite=True)


def test_a_redis_stream_has_the_rows_of_the_files(small: Written, valkey: ValkeyServer) -> None:
    """Written and read back, field by field, by several tasks."""
    stream = {"stream": "round-trip"}
    save(valkey.url, events(small), **stream)
    assert rows(load(valkey.url, **stream, tasks="3")) == rows(events(small))
    some = load(valkey.url, columns="keys event", **stream)
    assert rows(some) == rows(events(small).select(["keys", "event"]))
    assert load(valkey.url, stream="nothing").num_rows == 0


def test_an_entry_that_is_no_event_is_named(valkey: ValkeyServer) -> None:
    """With the way out."""
    with redis.Redis.from_url(valkey.url) as client:
        client.xadd("strange", {"seq": "one", "keys": "[]"})
    with pytest.raises(PipelineError, match="is not an event"):
        load(valkey.url, stream="strange")


def jobs_table(count: int) -> pa.Table:
    numbers = range(count)
    return pa.table(
        {
            "handler": [f"handler-{number % 3}" for number in numbers],
            "payload": [{"order": number} for number in numbers],
            "delay": [float(number) for number in numbers],
            "keys": [[f"order:{number}"] for number in numbers],
            "dedupe_key": [f"cancel-{number}" for number in numbers],
        }
    )


def test_jobs_are_written_and_read(address: JobAddress) -> None:
    """A job for each row; written twice is written once; rows that became none are reported."""
    options = options_of(address)
    good = jobs_table(60)
    [bad] = good.slice(0, 1).to_pylist()
    bad |= {"delay": -1.0, "dedupe_key": "bad"}
    both = pa.concat_tables([good, pa.Table.from_pylist([bad], good.schema)])
    with pytest.raises(PipelineError, match=r"1 row refused.*delay is -1\.0"):
        save(address.url, both, **options, startedMs="1900000000000")
    save(address.url, good, **options, startedMs="1900000000000")
    found = load(address.url, **options, tasks="3").to_pylist()
    by_key = {row["dedupe_key"]: row for row in found}
    assert len(found) == len(by_key) == 60
    seventh = by_key["cancel-7"]
    assert (seventh["handler"], seventh["state"], seventh["keys"]) == (
        "handler-1",
        "waiting",
        ["order:7"],
    )
    assert json.loads(seventh["payload_json"]) == {"order": 7}
    assert seventh["deadline"].timestamp() == 1_900_000_007.0
    assert load(address.url, EqualTo(("handler",), "handler-2"), **options).num_rows == 20
    assert load(address.url, EqualTo(("state",), "done"), **options).num_rows == 0
    assert load(address.url, columns="id keys", **options).column_names == ["id", "keys"]


def test_spark_writes_and_reads_jobs_and_those_that_ended_become_events(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With those of a journal that has some of them too, each job is one operation."""
    address = JobAddress(url=f"sqlite:///{tmp_path}/jobs.db")
    asyncio.run(migrate(address.url))
    frame = spark.createDataFrame(jobs_table(4))
    started_ms = time.time_ns() // 1_000_000 + 3_600_000
    for frame_, said in ((frame, ""), (frame.withColumn("delay", F.lit(-1.0)), "4 rows refused")):
        writer = frame_.write.format("purgatory").mode("append")
        writer.options(**options_of(address), startedMs=started_ms)
        with pytest.raises(PySparkException, match=said) if said else nullcontext():
            writer.save(address.url)
    table = spark.read.format("purgatory").options(**options_of(address)).load(address.url)
    ids = {row["dedupe_key"]: row["id"] for row in table.collect()}
    end_jobs(address, cancelled=ids["cancel-3"], failed=ids["cancel-0"])
    found = job_events(table)
    assert found.schema.simpleString() == EVENT_SCHEMA.simpleString()
    by_id = {row["job_id"]: row for row in found.collect()}
    assert by_id.keys() == {ids["cancel-3"], ids["cancel-0"]}
    cancelled, failed = by_id[ids["cancel-3"]], by_id[ids["cancel-0"]]
    assert (cancelled["event"], cancelled["state"], cancelled["attempt"]) == (
        *("cancelled", "cancelled"),
        0,
    )
    assert (failed["event"], failed["state"], failed["error"]) == ("expired", "failed", "no use")
    assert failed["lateness_us"] >= 0 and cancelled["lateness_us"] is None
    assert failed["kind"] == f"job:{failed['handler']}"
    of_journal = found.withColumns({"seq": F.lit(7).cast("long"), "worker": F.lit("host:1")})
    both = found.unionByName(of_journal)
    as_of = datetime.now(UTC)
    ended = operation_outcomes(both, as_of=as_of, grace_s=900).collect()
    assert {(row["job_id"], row["records"], row["is_contested"]) for row in ended} == {
        (job_id, 2, False) for job_id in by_id
    }


def end_jobs(address: JobAddress, *, cancelled: str, failed: str) -> None:
    handlers = tuple(f"handler-{n}" for n in range(3))
    with opened(address) as (runner, store):
        runner.run(store.run([Cancel(cancelled), RunNow(failed)]))
        [claimed] = runner.run(store.run([Claim("test", 0, 9, 60_000, handlers)]))
        [claim] = [job.claim for job in claimed.jobs]
        runner.run(store.run([Start(claim, lease_ms=60_000)]))
        runner.run(store.run([Finish(claim, JobState.FAILED, "no use")]))


def test_a_journal_that_is_opened_meanwhile_takes_nothing_for_a_leftover(
    small: Written, tmp_path: Path
) -> None:
    """A service may start between the writing of Spark's files and their renaming."""
    [path, *_] = sorted(small.folder.rglob("*.parquet"))
    writer = JournalWriter(str(tmp_path))
    message = writer.write(iter(pq.ParquetFile(path).read().to_batches()))
    assert not complete_files(tmp_path)
    ParquetFiles(tmp_path).open("another", SystemClock())
    writer.commit([message])
    assert [pq.ParquetFile(file).metadata.num_rows for file in complete_files(tmp_path)] == [
        pq.ParquetFile(path).metadata.num_rows
    ]


def test_results_are_tables_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Outcomes as the manifest names them, and each table of waits; by a filter, by columns."""
    written = write(tmp_path / "journal", operations=OPERATIONS, hours=2.0, tenants=2)
    assert main(["waits", "--journal", str(written.folder), "--out", str(tmp_path)]) == 0
    [old] = (tmp_path / "outcomes").glob("date=*/hour=06/*.parquet")
    (old.parent / "000009-killed-0.parquet").write_bytes(old.read_bytes())

    def read(table: str) -> DataFrame:
        return spark.read.format("purgatory").option("table", table).load(str(tmp_path))

    assert read("outcomes").count() == OPERATIONS
    rows = read("outcomes").where("kind = 'park'").select("outcome", "labels", "watched_at")
    assert rows.count() == written.truth.kinds["park"].operations
    assert rows.where("labels['tenant'] is not null and watched_at is not null").count() > 0
    kinds = {row["kind"]: row["operations"] for row in read("waits").collect()}
    assert kinds == {name: kind.operations for name, kind in written.truth.kinds.items()}
    assert read("waits/parked").columns[:2] == ["kind", "minute"]
    with pytest.raises(PySparkException, match="run the job that writes it first"):
        read("waits/nothing").count()
    again = read("waits").write.format("purgatory").mode("append").option("table", "waits")
    with pytest.raises(PySparkException, match="is a result of the pipeline"):
        again.save(str(tmp_path))
