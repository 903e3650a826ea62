"""Jobs from a table: each row once, however often it is tried; refused rows with the reason."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.jobs import InvalidDeadlineError, Job, JobLimits
from purgatory.jobs.model.job import JobFilter
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.sql import migrate
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.schedule import JobAdder, JobAddress, JobRows, opened
from purgatory.testing import MockClock
from tests.nightly import NIGHTLY
from tests.valkey_server import ValkeyServer

STARTED_MS = 1_900_000_000_000


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=NIGHTLY)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> JobAddress:
    """An empty store."""
    if request.param == "redis":
        server: ValkeyServer = request.getfixturevalue("valkey")
        return JobAddress(url=server.url, prefix=tmp_path.name)
    url = f"sqlite:///{tmp_path}/jobs.db"
    asyncio.run(migrate(url))
    return JobAddress(url=url)


def jobs_in(address: JobAddress) -> list[Job]:
    found: list[Job] = []
    after: str | None = None
    with opened(address) as (runner, store):
        while True:
            page = runner.run(store.query(JobFilter(), after=after, limit=1_000))
            found += page.jobs
            after = page.next
            if after is None:
                return found


def rows(**changed: Any) -> JobRows:
    values: dict[str, Any] = {"name": "run", "started_ms": STARTED_MS, "limits": JobLimits()}
    return JobRows(**{**values, **changed})


def spec(**row: Any) -> JobSpec:
    return rows().spec({"handler": "remind", "delay": 60.0, **row})


def test_a_row_is_the_same_job_whenever_it_is_asked() -> None:
    """Its id comes from its own id, its dedupe key, or all of it; and from the run's name."""
    assert spec(payload="1") == spec(payload="1")
    assert spec(payload="1").id != spec(payload="2").id
    assert spec(payload="1", dedupe_key="a").id == spec(payload="2", dedupe_key="a").id
    assert spec(id="7", payload="1").id == spec(id="7", dedupe_key="a").id
    other = rows(name="another").spec({"handler": "remind", "delay": 60.0, "id": "7"})
    assert other.id != spec(id="7").id


def test_a_delay_counts_from_the_start_of_the_run() -> None:
    """So that a row which is added later, by a run that goes on, is due when it was to be."""
    assert spec(delay=0.5).deadline.at_ms == STARTED_MS + 500
    at = datetime(2031, 5, 1, 12, tzinfo=UTC)
    assert spec(delay=None, at=at).deadline.at_ms == int(at.timestamp() * 1_000)


def test_a_delay_that_is_over_before_its_row_is_added_is_due_at_once() -> None:
    """A long run, or one that goes on an hour later, refuses no row for what it took itself."""
    clock = MockClock()
    clock.set_wall(STARTED_MS + 3_600_000)
    late = rows(clock=clock)
    row = {"handler": "remind", "delay": 5.0, "id": "7"}
    assert late.spec(row).deadline.resolve(clock.wall_ms(), JobLimits()) == clock.wall_ms()
    assert late.spec(row).id == rows().spec(row).id
    past = {"handler": "remind", "at": datetime(2001, 1, 1, tzinfo=UTC)}
    with pytest.raises(InvalidDeadlineError, match="in the past"):
        late.spec(past).deadline.resolve(clock.wall_ms(), JobLimits())


def test_what_a_row_may_say() -> None:
    """A payload as JSON or as it is, keys as an array or with commas."""
    assert json.loads(spec(payload='{"a": [1, null]}').payload_json) == {"a": [1, None]}
    assert json.loads(spec(payload={"a": 1}).payload_json) == {"a": 1}
    assert spec(keys="order:1, order:2,").keys == ("order:1", "order:2")
    assert spec(keys=["order:1"], on_fire="cancel", max_attempts=3).max_attempts == 3
    assert spec().max_attempts == 10


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"handler": None}, "give the name of a registered handler"),
        ({"delay": None}, "give exactly one of the two"),
        ({"at": datetime(2031, 1, 1, tzinfo=UTC)}, "give exactly one of the two"),
        ({"delay": float("nan")}, "give a number of seconds from 0"),
        ({"payload": "{"}, "the payload is not JSON"),
        ({"payload": "NaN"}, "the payload is not JSON"),
        ({"keys": ["a\nb"]}, "control"),
        ({"on_fire": "explode"}, "give one of 'run', 'cancel'"),
        ({"max_attempts": 0}, "give a number from 1"),
    ],
)
def test_a_row_that_is_no_job_says_why(row: dict[str, Any], said: str) -> None:
    """In the words of whoever refuses it."""
    with pytest.raises((ValueError, TypeError), match=said):
        spec(**row)


def test_what_broke_off_goes_on(address: JobAddress) -> None:
    """As after a task that failed between two chunks, and was started again."""
    adder = JobAdder(address, rows())
    table = [{"handler": "remind", "delay": 60.0, "payload": str(n)} for n in range(50)]
    chunks = iter([table[:20], table[20:]])
    adding = adder.add(chunks)
    assert next(adding) == [{"status": "added", "rows": 20}]
    adding.close()
    [again] = adder.add(iter([table]))
    assert {row["status"]: row["rows"] for row in again} == {"kept": 20, "added": 30}
    assert len(jobs_in(address)) == 50


def test_spark_makes_jobs_of_a_csv_file(
    spark: SparkSession,
    address: JobAddress,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the command; to run it again is to go on; refused rows are counted, and listed."""
    table = tmp_path / "jobs.csv"
    lines = ["handler,delay,payload,keys,dedupe_key"]
    lines += [
        f'cancel-order,{n + 100},"{{""order"": {n}}}",order:{n},cancel-{n}' for n in range(40)
    ]
    lines += [",5,1,,x1", "remind,soon,1,,x2", "remind,-3,1,,x3", "remind,4,{,,x4"]
    table.write_text("\n".join(lines))
    monkeypatch.setenv("PURGATORY_STORE", address.url)
    out = str(tmp_path / "out")
    arguments = ["schedule", "--from", str(table), "--out", out, "--prefix", address.prefix]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "44 rows: 40 jobs added, 0 replaced, 0 there already, 4 refused." in said
    assert "InvalidDeadline: 1, such as: delay is -3.0" in said
    refused = spark.read.parquet(f"{out}/schedule/rows").where("status = 'refused'")
    assert {json.loads(row["row_json"])["dedupe_key"] for row in refused.collect()} == {
        *("x1", "x2", "x3", "x4")
    }
    jobs = {job.dedupe_key: job for job in jobs_in(address)}
    assert len(jobs) == 40
    assert jobs["cancel-7"].keys == ("order:7",)
    assert jobs["cancel-7"].payload == {"order": 7}
    assert jobs["cancel-7"].deadline_ms - jobs["cancel-6"].deadline_ms == 1_000

    assert main(arguments) == 0
    assert "0 jobs added, 0 replaced, 40 there already" in capsys.readouterr().out
    assert len(jobs_in(address)) == 40
    assert main([*arguments, "--name", "another"]) == 1
    assert "or give another --out" in capsys.readouterr().err


@NIGHTLY
def test_spark_makes_jobs_of_other_tables(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parquet with structs and times, by several tasks, and a table of the catalogue."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    asyncio.run(migrate(url))
    frame = spark.range(30).select(
        F.lit("remind").alias("handler"),
        F.expr("timestamp '2030-01-01 00:00:00' + make_interval(0,0,0,0,0,0,id)").alias("at"),
        F.struct(F.col("id").alias("n")).alias("payload"),
    )
    frame.write.parquet(f"{tmp_path}/rows.parquet")
    store = ["--store", url]
    source = ["--from", f"{tmp_path}/rows.parquet", "--tasks", "3"]
    assert main(["schedule", *source, *store, "--out", f"{tmp_path}/one"]) == 0
    said, progress = capsys.readouterr()
    assert "30 jobs added" in said
    lines = progress.splitlines()
    assert " Spark" in lines[0] and lines[1].endswith(f" s  schedule: reading {source[1]}")
    jobs = jobs_in(JobAddress(url=url))
    assert sorted(job.payload["n"] for job in jobs) == list(range(30))
    assert min(job.deadline_ms for job in jobs) == 1_893_456_000_000
    frame.limit(3).createOrReplaceTempView("to_do")
    source = ["--from", "to_do", "--format", "table", "--name", "view"]
    assert main(["schedule", *source, *store, "--out", f"{tmp_path}/two"]) == 0
    assert "3 jobs added" in capsys.readouterr().out


@NIGHTLY
def test_on_spark_a_database_that_cannot_be_opened_ends_with_a_sentence(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And without a trace of calls."""
    (tmp_path / "jobs.csv").write_text("handler,delay\nremind,5\n")
    source = ["--from", f"{tmp_path}/jobs.csv", "--out", f"{tmp_path}/out"]
    assert main(["schedule", *source, "--store", "sqlite:////nowhere/jobs.db"]) == 1
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("schedule: ")
    assert "Traceback" not in said


def test_on_spark_a_database_without_tables_ends_with_the_way_out(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line is the store's own sentence, though it was a worker's error."""
    (tmp_path / "jobs.csv").write_text("handler,delay\nremind,5\n")
    (tmp_path / "new.db").touch()
    source = ["--from", f"{tmp_path}/jobs.csv", "--out", f"{tmp_path}/out"]
    assert main(["schedule", *source, "--store", f"sqlite:///{tmp_path}/new.db"]) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("schedule: the database has no tables for jobs: run ")


def test_on_spark_a_table_of_something_else_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what a job needs."""
    (tmp_path / "jobs.csv").write_text("name,age\nremind,5\n")
    source = ["--from", f"{tmp_path}/jobs.csv", "--out", f"{tmp_path}/out"]
    assert main(["schedule", *source, "--store", f"sqlite:///{tmp_path}/jobs.db"]) == 1
    assert "a job needs `handler`" in capsys.readouterr().err
