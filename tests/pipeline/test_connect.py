"""The same results on Spark Connect as in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.pipeline.spark.tables import Tables
from tests.house.imports import ROOT
from tests.patience import PATIENCE_S
from tests.pipeline.connect_server import (
    connect_server,
)
from tests.pipeline.synthetic import Written, write
from tests.pipeline.test_engines import TABLES
from tests.synthetic_journal import inject

needs_connect = pytest.mark.skipif(
    find_spec("grpc") is None and "CI" not in os.environ,
    reason="needs grpcio, which is in tests/requirements.txt; CI fails without it",
)

_COMMANDS = """
import json, sys
from purgatory.pipeline.__main__ import main
sys.exit(max(main(arguments) for arguments in json.loads(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A journal with repeats, disorder, dropped records, a crash and a broken file."""
    faults = {"duplicate_share": 0.05, "dropped_share": 0.02, "shuffled": True, "crashes": (0.5,)}
    options: dict[str, Any] = {"operations": 2_000, "hours": 1.5, **faults}
    written = write(tmp_path_factory.mktemp("everywhere") / "a journal", **options)
    inject(written.folder, "truncated")
    return written


@pytest.fixture(scope="module")
def expected(small: Written, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of DuckDB, which are those of Spark in one process: see test_engines.py."""
    out = tmp_path_factory.mktemp("expected")
    run([["waits", "--journal", str(small.folder), "--out", str(out), "--engine", "duckdb"]])
    return out


@pytest.fixture
def not_installed(tmp_path: Path) -> dict[str, str]:
    """The environment of executors on which this package is not installed."""
    broken = tmp_path / "path" / "purgatory"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not installed here')\n")
    return {"PYTHONPATH": str(broken.parent)}


def run(commands: list[list[str]]) -> str:
    """Run commands of the pipeline in one process of their own, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS, json.dumps(commands)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    return done.stdout


def assert_same(found: Path, expected: Path) -> None:
    """All outcomes and all tables of waits are the same."""
    assert outcomes(found) == outcomes(expected)
    for name in TABLES:
        rows = [Tables(str(out)).rows("waits", name) for out in (found, expected)]
        assert sorted(rows[0], key=repr) == sorted(rows[1], key=repr)


def outcomes(out: Path) -> list[dict[str, Any]]:
    files = sorted((out / "outcomes").rglob("run=*/**/*.parquet"))
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(rows, key=lambda row: str(row["operation_id"]))


@needs_connect
def test_spark_connect(
    small: Written, expected: Path, not_installed: Mapping[str, str], tmp_path: Path
) -> None:
    """The tables are the same, and a replay runs though the server lacks this package."""
    out = tmp_path / "out"
    out.mkdir()
    journal = ["--journal", str(small.folder), "--out", str(out)]
    replay = ["replay", "--load", "kafka-low", "--operations", "500", "--shards", "2"]
    jobs = [[*replay, "--out", str(out)], ["waits", *journal]]
    with connect_server(tmp_path, not_installed) as address:
        said = run([[*arguments, "--master", address] for arguments in jobs])
    assert f"{small.truth.operations:,} operations" in said and "Skipped files: 1" in said
    assert "500 operations in" in said
    assert_same(out, expected)
