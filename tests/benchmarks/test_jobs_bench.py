"""`make bench-jobs` in small: that every row can be filled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.jobs.rows import ROWS
from tests.benchmarks.jobs.stages import STAGES
from tests.nightly import NIGHTLY

ROOT = Path(__file__).parents[2]


def test_every_row_is_of_a_stage() -> None:
    """And every stage has a row."""
    assert {row.stage for row in ROWS} == STAGES.keys()


@NIGHTLY
def test_a_run_prints_a_table_and_writes_its_figures(tmp_path: Path) -> None:
    """Of the stages that were asked for, each in processes of its own."""
    command = (
        *(sys.executable, "-m", "tests.benchmarks.jobs", "--plan", "trial"),
        *("--stage", "deferring, SQLite", "--stage", "lateness, SQLite"),
        *("--stage", "recovery, SQLite", "--output", str(tmp_path)),
    )
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    report = json.loads((tmp_path / "jobs.json").read_text())
    titles = [row["title"] for row in report["rows"]]
    assert len(titles) == sum("SQLite" in row.stage for row in ROWS)
    assert all(title in run.stdout for title in titles)
    early = next(row for row in report["rows"] if row["title"].startswith("early"))
    assert early["ours"]["max"] == 0
