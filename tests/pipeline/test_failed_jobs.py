"""Jobs that failed are in the report, though their wait fired or expired."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.advise.advice import Targets
from purgatory.pipeline.report.changes import changes, summary_of
from purgatory.pipeline.report.verdict import verdict
from purgatory.pipeline.rollups.rollup_files import KEPT_ERROR
from purgatory.pipeline.run import Run
from purgatory.pipeline.sql.duck import connected
from tests.pipeline.rolled import START, waits, write_outcomes
from tests.pipeline.test_charts import NOTHING

AS_OF = START + timedelta(hours=1)


def job(second: int, state: str, error: str | None = None, name: str = "pay") -> dict[str, Any]:
    """Return the outcome of a job whose wait expired after so many seconds."""
    at = START + timedelta(seconds=second)
    row = {"kind": f"job:{name}", "outcome": "expired", "completed_at": at, "lateness_us": 1_000}
    return row | {"handler": name, "state": state, "error": error}


ROWS = [
    {"completed_at": START + timedelta(seconds=3)},
    job(1, "failed", "first"),
    job(9, "failed", "<b>refused</b>"),
    job(5, "failed", "second"),
    job(11, "failed"),
    job(2, "done"),
    job(3, "failed", name="mail"),
    job(4, "done", name="tidy"),
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failed")
    write_outcomes(folder, ROWS, as_of=AS_OF)
    return folder


def test_failed_jobs_are_found(out: Path) -> None:
    """By kind, with the latest error that is known."""
    expected = [
        {"kind": "job:mail", "jobs": 1, "error": None},
        {"kind": "job:pay", "jobs": 4, "error": "<b>refused</b>"},
    ]
    found = Run(str(out), connected(threads=1)).failed_jobs()
    assert sorted(found, key=lambda row: str(row["kind"])) == expected


def test_the_latest_error_is_that_of_the_latest_hour(tmp_path: Path) -> None:
    """Of hours, days and months; errors are cut to what a report shows."""
    for later in (timedelta(days=70), timedelta(hours=2), timedelta(days=1), timedelta(0)):
        at = START + later
        row = job(1, "failed", f"{later.days}" + "x" * 999) | {"completed_at": at}
        write_outcomes(tmp_path, [row | {"watched_at": at}], as_of=AS_OF + timedelta(days=71))
    (found,) = Run(str(tmp_path), connected(threads=1)).failed_jobs()
    assert (found["kind"], found["jobs"]) == ("job:pay", 4)
    assert found["error"] == "70" + "x" * (KEPT_ERROR - 2)


def test_the_report_names_failed_jobs(out: Path) -> None:
    """At the top, in a tile and among the jobs; the error is text."""
    for name in ("waits", "advise", "report"):
        assert main([name, "--engine", "duckdb", "--out", str(out)]) == 0
    page = (out / "report" / "report.html").read_text()
    assert "<dt>failed jobs</dt><dd>5</dd>" in page
    assert "of job:pay failed</strong>" in page
    assert "the target is 0.10%. The latest error: &lt;b&gt;refused&lt;/b&gt;" in page
    assert "Failed jobs: fired or expired is how the wait ended" in page
    assert "<b>refused" not in page


def test_cancelled_jobs_are_counted_apart(tmp_path: Path) -> None:
    """A fire that cancels, or a cancellation between two attempts."""
    rows = [
        job(1, "done") | {"outcome": "fired"},
        job(2, "cancelled") | {"outcome": "fired", "lateness_us": None},
        job(3, "cancelled", "first attempt"),
        job(4, "cancelled") | {"outcome": "cancelled", "lateness_us": None},
        job(5, "done"),
    ]
    write_outcomes(tmp_path, rows, as_of=AS_OF)
    [by_kind], [hot_key] = waits(tmp_path, "by_kind", "hot_keys")
    counts = {name: by_kind[name] for name in ("fired", "expired", "cancelled")}
    assert counts == {"fired": 1, "expired": 1, "cancelled": 3}
    assert (hot_key["fired"], hot_key["expired"]) == (1, 1)


def test_the_report_says_which_jobs_it_counts(tmp_path: Path) -> None:
    """Cancelled ones have a tile; waiting and retried ones are named as left out."""
    rows = [job(1, "done"), job(2, "cancelled") | {"outcome": "fired"}]
    write_outcomes(tmp_path, rows, as_of=AS_OF)
    for name in ("waits", "advise", "report"):
        assert main([name, "--engine", "duckdb", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<dt>cancelled jobs</dt><dd>1</dd>" in page
    assert "tried again after a failure" in page


def test_few_failed_jobs_are_no_change() -> None:
    """One of a thousand may be chance; and a long error stays short."""
    rows = [{"kind": "job:pay", "operations": 1_000, "lost": 0, "open": 0}]
    failed = {"kind": "job:pay", "jobs": 1, "error": "x" * 999}
    found = replace(NOTHING, by_kind=rows, failed_jobs=[failed])
    assert verdict(found, Targets()).changes == []
    [change] = verdict(replace(found, failed_jobs=[failed | {"jobs": 9}]), Targets()).changes
    assert change.what == "0.9% of job:pay failed" and len(change.why) < 400


def test_more_failed_jobs_are_named_since_the_previous_run() -> None:
    """But not if the previous report did not count them."""
    now = summary_of(replace(NOTHING, failed_jobs=[{"kind": "job:a", "jobs": 3, "error": ""}]), "")
    before = replace(now, faults={**now.faults, "jobs failed": 1})
    assert changes(now, before).sentences == ("2 more jobs failed, 3 in all.",)
    assert changes(now, replace(now, faults={})).sentences == ()


def test_a_missed_target_fails_a_build_that_gives_targets(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report is written all the same; without targets of the caller it is a success."""
    for name in ("waits", "advise", "report"):
        assert main([name, "--engine", "duckdb", "--out", str(out)]) == 0
    report = ["report", "--engine", "duckdb", "--out", str(out), "--targets"]
    assert main([*report, "failed=100%,late=100%"]) == 0
    (out / "report" / "report.html").unlink()
    assert main([*report, "failed=1%"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("Missed: ") and "of job:pay failed" in said[-1]
    assert "of job:pay failed</strong>" in (out / "report" / "report.html").read_text()
