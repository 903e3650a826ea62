"""The format "purgatory": the journal in files and in Redis, jobs in SQL and in Redis."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
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
from pyspark.sql.datasource import GreaterThanOrEqual

from purgatory.jobs import JobState
from purgatory.jobs.model import Cancel, Claim, Finish, RunNow, Start
from purgatory.jobs.sql import migrate
from purgatory.journal import ParquetFiles
from purgatory.pipeline import EVENT_SCHEMA, job_events, operation_outcomes
from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.outcomes.journal_files import OnBadFile
from purgatory.pipeline.schedule import JobAddress, opened
from purgatory.pipeline.schemas import ARROW_EVENT_SCHEMA as EVENTS
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


def options_of(address: JobAddress) -> dict[str, Any]:
    return {"table": "jobs", "prefix": address.prefix, "shards": address.shards}


def events(spark: SparkSession, written: Written) -> DataFrame:
    """The same files, as Spark reads them by itself."""
    return spark.read.schema(EVENT_SCHEMA).parquet(*map(str, written.folder.rglob("*.parquet")))


def same(left: DataFrame, right: DataFrame) -> bool:
    return left.exceptAll(right).isEmpty() and right.exceptAll(left).isEmpty()


def test_the_journal_s_files_are_a_table(spark: SparkSession, small: Written) -> None:
    """Every row, every column, as Spark's own reader has them."""
    found = spark.read.format("purgatory").load(str(small.folder))
    assert found.schema.names == EVENT_SCHEMA.names
    assert same(found, events(spark, small))


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


def test_a_schema_with_fewer_columns_reads_no_others(spark: SparkSession, small: Written) -> None:
    """In the order that it gives."""
    found = spark.read.format("purgatory").schema("kind string, at timestamp")
    table = found.load(f"file://{str(small.folder).replace(' ', '%20')}")
    assert same(table, events(spark, small).select("kind", "at"))


def test_filters_leave_files_and_rows_unread(spark: SparkSession, small: Written) -> None:
    """An hour and a kind: the same rows as without, and fewer files to read them from."""
    table = spark.read.format("purgatory").load(str(small.folder))
    condition = (F.col("at") >= "2026-11-20 07:00:00") & (F.col("kind") == "watch")
    for more in (
        F.col("event").isin("fired", "expired"),
        F.col("operation_id").startswith("00"),
        F.col("completed_by").isNotNull() & (F.col("lateness_us") > 100),
    ):
        assert same(table.where(condition & more), events(spark, small).where(condition & more))
    reader = JournalReader(str(small.folder), EVENTS, OnBadFile.REFUSE)
    late = GreaterThanOrEqual(("at",), datetime(2026, 11, 20, 7, tzinfo=UTC))
    assert list(reader.pushFilters([late])) == [late]
    paths = [
        path for files in reader.partitions() if isinstance(files, Files) for path in files.paths
    ]
    assert paths
    assert not [path for path in paths if "hour=06" in path]


def test_a_broken_file_is_named(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused, or left out where that is asked for."""
    written = write(tmp_path / "journal", operations=50)
    whole = events(spark, written).collect()
    for fault in ("truncated", "empty", "wrong-schema", "unknown-version", "half-written"):
        inject(written.folder, fault)
    with pytest.raises(PySparkException, match=r"zz-[\w-]+\.parquet"):
        spark.read.format("purgatory").load(str(written.folder)).collect()
    skipping = spark.read.format("purgatory").option("onBadFile", "skip")
    assert sorted(skipping.load(str(written.folder)).collect()) == sorted(whole)


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


def test_spark_says_what_is_refused(spark: SparkSession) -> None:
    """The sentence is in its error."""
    with pytest.raises(PySparkException, match="not a folder on this machine"):
        spark.read.format("purgatory").load("/nowhere/at/all").collect()


def test_what_is_written_is_a_journal(spark: SparkSession, small: Written, tmp_path: Path) -> None:
    """Hour by hour, added to what is there; and never in place of it."""
    table = events(spark, small)
    for _ in range(2):
        table.write.format("purgatory").mode("append").save(str(tmp_path))
    found = spark.read.format("purgatory").load(str(tmp_path))
    assert same(found, table.unionAll(table))
    hours = {path.parent.name for path in small.folder.rglob("*.parquet")}
    assert {path.parent.name for path in tmp_path.rglob("*.parquet")} == hours
    assert not list(tmp_path.rglob(".*.tmp"))
    with pytest.raises(PySparkException, match="append"):
        table.write.format("purgatory").mode("overwrite").save(str(tmp_path))


def test_a_redis_stream_has_the_rows_of_the_files(
    spark: SparkSession, small: Written, valkey: ValkeyServer
) -> None:
    """Written and read back, field by field, by several tasks."""
    table = events(spark, small)
    stream = {"stream": "round-trip"}
    table.write.format("purgatory").mode("append").options(**stream).save(valkey.url)
    reader = spark.read.format("purgatory").options(**stream, tasks=3)
    assert same(reader.load(valkey.url), table)
    some = reader.schema("keys array<string>, event string").load(valkey.url)
    assert same(some, table.select("keys", "event"))
    empty = spark.read.format("purgatory").option("stream", "nothing").load(valkey.url)
    assert empty.isEmpty()


def test_an_entry_that_is_no_event_is_named(spark: SparkSession, valkey: ValkeyServer) -> None:
    """With the way out."""
    with redis.Redis.from_url(valkey.url) as client:
        client.xadd("strange", {"seq": "one", "keys": "[]"})
    reader = spark.read.format("purgatory").option("stream", "strange")
    with pytest.raises(PySparkException, match="is not an event"):
        reader.load(valkey.url).collect()


def jobs_frame(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).select(
        F.concat(F.lit("handler-"), F.col("id") % 3).alias("handler"),
        F.struct(F.col("id").alias("order")).alias("payload"),
        F.col("id").cast("double").alias("delay"),
        F.array(F.concat(F.lit("order:"), "id")).alias("keys"),
        F.concat(F.lit("cancel-"), "id").alias("dedupe_key"),
    )


def test_jobs_are_written_and_read(spark: SparkSession, address: JobAddress) -> None:
    """A job for each row; written twice is written once; rows that became none are reported."""
    options = options_of(address)
    good = jobs_frame(spark, 60)
    bad = good.limit(1).withColumns({"delay": F.lit(-1.0), "dedupe_key": F.lit("bad")})
    for frame in (good.unionAll(bad), good):
        writer = frame.write.format("purgatory").mode("append")
        writer.options(**options, startedMs=1_900_000_000_000)
        if frame is good:
            writer.save(address.url)
        else:
            with pytest.raises(PySparkException, match=r"1 row refused.*delay is -1\.0"):
                writer.save(address.url)
    table = spark.read.format("purgatory").options(**options, tasks=3).load(address.url)
    rows = {row["dedupe_key"]: row.asDict() for row in table.collect()}
    assert len(rows) == 60
    seventh = rows["cancel-7"]
    assert (seventh["handler"], seventh["state"], seventh["keys"]) == (
        "handler-1",
        "waiting",
        ["order:7"],
    )
    assert json.loads(seventh["payload_json"]) == {"order": 7}
    assert seventh["deadline"].timestamp() == 1_900_000_007.0
    assert table.where("handler = 'handler-2' and state in ('waiting', 'done')").count() == 20
    assert table.where("state = 'done'").isEmpty()
    columns = (
        spark.read.format("purgatory").options(**options).schema("id string, keys array<string>")
    )
    assert len(columns.load(address.url).first() or ()) == 2


def test_jobs_that_ended_become_events(spark: SparkSession, tmp_path: Path) -> None:
    """With those of a journal that has some of them too, each job is one operation."""
    address = JobAddress(url=f"sqlite:///{tmp_path}/jobs.db")
    asyncio.run(migrate(address.url))
    writer = jobs_frame(spark, 4).write.format("purgatory").mode("append")
    started_ms = time.time_ns() // 1_000_000 + 3_600_000
    writer.options(**options_of(address), startedMs=started_ms).save(address.url)
    table = spark.read.format("purgatory").options(**options_of(address)).load(address.url)
    ids = {row["dedupe_key"]: row["id"] for row in table.collect()}
    asyncio.run(end_jobs(address, cancelled=ids["cancel-3"], failed=ids["cancel-0"]))
    found = job_events(table)
    assert found.schema.simpleString() == EVENT_SCHEMA.simpleString()
    rows = {row["job_id"]: row for row in found.collect()}
    assert rows.keys() == {ids["cancel-3"], ids["cancel-0"]}
    cancelled, failed = rows[ids["cancel-3"]], rows[ids["cancel-0"]]
    assert (cancelled["event"], cancelled["state"], cancelled["attempt"]) == (
        *("cancelled", "cancelled"),
        0,
    )
    assert (failed["event"], failed["state"], failed["error"]) == ("expired", "failed", "no use")
    assert failed["lateness_us"] >= 0 and cancelled["lateness_us"] is None
    assert failed["kind"] == f"job:{failed['handler']}"
    found.write.format("purgatory").mode("append").save(str(tmp_path / "journal"))
    of_journal = found.withColumns({"seq": F.lit(7).cast("long"), "worker": F.lit("host:1")})
    both = spark.read.format("purgatory").load(str(tmp_path / "journal")).unionByName(of_journal)
    as_of = datetime.now(UTC)
    ended = operation_outcomes(both, as_of=as_of, grace_s=900).collect()
    assert {(row["job_id"], row["records"], row["is_contested"]) for row in ended} == {
        (job_id, 2, False) for job_id in rows
    }


async def end_jobs(address: JobAddress, *, cancelled: str, failed: str) -> None:
    async with opened(address) as store:
        await store.run([Cancel(cancelled), RunNow(failed)])
        [claimed] = await store.run(
            [Claim("test", 0, 9, 60_000, tuple(f"handler-{n}" for n in range(3)))]
        )
        [claim] = [job.claim for job in claimed.jobs]
        await store.run([Start(claim, lease_ms=60_000)])
        await store.run([Finish(claim, JobState.FAILED, "no use")])


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
