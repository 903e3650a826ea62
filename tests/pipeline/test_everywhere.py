"""The same results on Spark Connect and on two executors without this package as in one process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import purgatory
from purgatory.jobs.sql import migrate
from purgatory.pipeline.run import Run
from purgatory.pipeline.schedule import JobAddress
from purgatory.pipeline.spark.folder import LocalFolder
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.sql.duck import connected
from tests.house.imports import ROOT
from tests.nightly import IS_NIGHTLY, NIGHTLY, by_night
from tests.patience import PATIENCE_S
from tests.pipeline.spark_servers import (
    SPARK_HOME,
    SUBMIT,
    connect_server,
    environment,
    standalone_cluster,
)
from tests.pipeline.synthetic import TABLES, Written, outcomes, write
from tests.pipeline.test_schedule import jobs_in
from tests.synthetic_journal import inject, put
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.usefixtures("no_server")

needs_connect = pytest.mark.skipif(
    find_spec("grpc") is None and "CI" not in os.environ,
    reason="needs grpcio, which is in tests/requirements.txt; CI fails without it",
)

# By night, each runs in both places. By day Spark Connect is beside the shared session.
COMMAND_NAMES = ["replay", "waits", "sql", "redis"]
COMMANDS = """
import json, sys
from purgatory.pipeline.__main__ import main
sys.exit(max(main(arguments) for arguments in json.loads(sys.argv[1])))
"""

_FAR = datetime(2099, 1, 1, tzinfo=UTC)
AHEAD = {
    "operation_id": "far",
    "event": "watched",
    "seq": 1,
    "kind": "park",
    "keys": ["a"],
    "worker": "ahead",
    "at": _FAR,
    "watched_at": _FAR,
    "deadline": _FAR + timedelta(hours=1),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A journal with repeats, disorder, dropped records, a crash, a broken file, a wrong clock."""
    faults = {"duplicate_share": 0.05, "dropped_share": 0.02, "shuffled": True, "crashes": (0.5,)}
    options: dict[str, Any] = {"operations": 2_000, "hours": 1.5, **faults}
    written = write(tmp_path_factory.mktemp("everywhere") / "a journal", **options)
    put(written.folder / "ahead.parquet", AHEAD)
    inject(written.folder, "truncated")
    return written


@pytest.fixture(scope="module")
def expected(small: Written, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of DuckDB, which are those of Spark in one process: see test_engines.py."""
    out = tmp_path_factory.mktemp("expected")
    expected = Run(str(out), connected(threads=1), journal=str(small.folder))
    expected.update()
    expected.write_waits()
    return out


@pytest.fixture
def not_installed(tmp_path: Path) -> dict[str, str]:
    """The environment of executors on which this package is not installed."""
    broken = tmp_path / "path" / "purgatory"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not installed here')\n")
    return {"PYTHONPATH": str(broken.parent)}


def run(
    program: Sequence[str],
    commands: Sequence[Sequence[str]],
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run commands of the pipeline in one process of their own, and return its output."""
    done = subprocess.run(
        [*program, json.dumps(commands)],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    return done.stdout


class Everything:
    """Commands that run on Spark, by their names, and what they have to find."""

    def __init__(self, names: Sequence[str], small: Written, out: Path, valkey: str) -> None:
        self.names, self.small, self.out = names, small, out
        self.store = f"sqlite:///{out}/jobs.db"
        self.redis = JobAddress(url=valkey, prefix=out.parent.name)

    def commands(self, *more: str) -> list[list[str]]:
        """Return the commands, with `more` options."""
        self.out.mkdir()
        asyncio.run(migrate(self.store))
        (self.out / "jobs.csv").write_text("handler,delay\n" + "remind,5000\nremind,6000\n,1\n")
        out, journal = ["--out", str(self.out), *more], ["--journal", str(self.small.folder)]
        rows = ["schedule", "--from", str(self.out / "jobs.csv"), *more]
        redis = ["--store", self.redis.url, "--prefix", self.redis.prefix]
        commands = {
            "replay": ["replay", "--load", "kafka-low", "--operations=500", "--shards=2", *out],
            "waits": ["waits", *journal, *out],
            "sql": [*rows, "--store", self.store, "--out", f"{self.out}/sql"],
            "redis": [*rows, *redis, "--out", f"{self.out}/redis"],
        }
        return [commands[name] for name in self.names]

    def check(self, said: str, expected: Path) -> None:
        """Fail unless the results are those of one process."""
        if "replay" in self.names:
            assert "500 operations in" in said
            for name in ("slices", "by_time", "by_shard"):
                assert pq.read_table(self.out / "replay" / name).num_rows > 0
        if "waits" in self.names:
            assert f"{self.small.truth.operations:,} operations" in said
            assert "Skipped files: 1" in said
            assert_same(self.out, expected)
        for name, address in {"sql": JobAddress(url=self.store), "redis": self.redis}.items():
            if name in self.names:
                assert "3 rows: 2 jobs added, 0 replaced, 0 there already, 1 refused." in said
                assert len(jobs_in(address)) == 2


def assert_same(found: Path, expected: Path) -> None:
    """All outcomes and all tables of waits are the same."""
    folders = (LocalFolder(f"{out}/outcomes") for out in (found, expected))
    assert len({*map(repr, map(outcomes, folders))}) == 1
    for name in TABLES:
        both = [Tables(str(out)).rows("waits", name) for out in (found, expected)]
        assert sorted(both[0], key=repr) == sorted(both[1], key=repr)


@contextmanager
def two_executors(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield a master, by day without the processes of a cluster, and variables for its driver."""
    folder.mkdir()
    if IS_NIGHTLY:
        with standalone_cluster(folder) as address:
            yield address, environment()
    else:
        # A home of its own: executors work below it.
        for entry in SPARK_HOME.iterdir():
            (folder / entry.name).symlink_to(entry)
        yield "local-cluster[2,1,512]", environment({"SPARK_HOME": str(folder)})


@pytest.fixture
def connect(
    request: pytest.FixtureRequest, not_installed: Mapping[str, str], tmp_path: Path
) -> Iterator[str]:
    """The address of a server of Spark Connect; by night without this package on its PATH."""
    if IS_NIGHTLY:
        with connect_server(tmp_path, not_installed) as address:
            yield address
    else:
        yield request.getfixturevalue("connect_address")


@needs_connect
def test_spark_connect(
    connect: str,
    small: Written,
    expected: Path,
    valkey: ValkeyServer,
    tmp_path: Path,
) -> None:
    """This package is there, from the current folder."""
    names = by_night(COMMAND_NAMES, ["waits", "sql"])
    everything = Everything(names, small, tmp_path / "out", valkey.url)
    said = run([sys.executable, "-c", COMMANDS], everything.commands("--master", connect))
    everything.check(said, expected)


def test_two_executors(
    small: Written,
    expected: Path,
    not_installed: Mapping[str, str],
    valkey: ValkeyServer,
    tmp_path: Path,
) -> None:
    """By spark-submit, though only the driver has this package installed."""
    names = by_night(COMMAND_NAMES, ["replay"])
    everything = Everything(names, small, tmp_path / "out", valkey.url)
    archive, program = tmp_path / "purgatory.zip", tmp_path / "program.py"
    # As in docs/pipeline/clusters.md.
    arguments = ["-m", "zipfile", "-c", str(archive), *purgatory.__path__]
    subprocess.run([sys.executable, *arguments], check=True)
    program.write_text(COMMANDS)
    options = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        **{f"spark.executorEnv.{name}": value for name, value in not_installed.items()},
    }
    settings = [part for item in options.items() for part in ("--conf", "=".join(item))]
    with two_executors(tmp_path / "spark") as (master, variables):
        submit = [SUBMIT, "--master", master, "--py-files", str(archive), *settings, str(program)]
        said = run(submit, everything.commands(), variables)
    # More if the end of the driver was slow: what has ended is started again until then.
    assert len(list((tmp_path / "spark" / "work").glob("app-*/*"))) >= 2
    everything.check(said, expected)


@NIGHTLY
def test_local_cluster(tmp_path: Path) -> None:
    """Without spark-submit, executors are processes of this machine: a replay runs in them."""
    arguments = ["replay", "--load", "kafka-low", "--operations", "500", "--shards", "2"]
    master = ["--master", "local-cluster[2,1,1024]", "--out", str(tmp_path / "out")]
    variables = environment({"SPARK_WORKER_DIR": str(tmp_path / "work")})
    said = run([sys.executable, "-c", COMMANDS], [[*arguments, *master]], variables)
    assert "500 operations in" in said
