"""The verdict of the report: what to change first, with the setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from purgatory.pipeline.outcomes.event_summary import FutureRecords, WorkerStart
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.report.sections import read_section, verdict_section
from purgatory.pipeline.report.verdict import (
    SHOWN_CHANGES,
    left_out,
    undecided_timeouts,
    verdict,
)
from tests.pipeline.test_charts import NOTHING


def timeout(kind: str, operations: int, advised_us: int | None) -> dict[str, Any]:
    """Return the advice on a kind with a timeout of 25 s."""
    row = {"kind": kind, "operations": operations, "advised_us": advised_us}
    return row | {"timeout_us": 25_000_000, "reason": f"why {kind}"}


def kind_row(operations: int, lost: int) -> dict[str, Any]:
    return {"kind": "park", "operations": operations, "lost": lost}


ADVICE = {
    "timeouts": [timeout("park", 100, 24_000_000), timeout("watch", 100, None)],
    "workers": {"workers": 1, "reason": ""},
    "geometry": {"advised": None, "default": None},
}


def test_nothing_to_change_is_no_change() -> None:
    """Timeouts that fit, one worker and the default wheel."""
    found = replace(NOTHING, by_kind=[kind_row(200, 0)], advice=ADVICE)
    assert verdict(found) == []


def test_too_little_data_is_not_called_good() -> None:
    """A kind without advice is named, and where the reason is."""
    undecided = undecided_timeouts(replace(NOTHING, advice=ADVICE))
    assert undecided == ["watch"]
    section = verdict_section([], undecided)
    assert "Nothing needs to change" not in section
    assert "right for watch" in section and 'href="#advice"' in section
    assert "Nothing needs to change" in verdict_section([], [])


def test_the_most_important_come_first_with_their_settings() -> None:
    """Wrong data before missing workers, before timeouts by their operations."""
    wheel = {"tick_ms": 1, "wheel_size": 512}
    advice = {
        "timeouts": [timeout("park", 10, 12_500_000), timeout("watch", 90, 50_000_000)],
        "workers": {"workers": 8, "reason": "the peak"},
        "geometry": {"advised": wheel, "default": {}, "reason": ""},
    }
    rows = [kind_row(100, 0)]
    found = verdict(replace(NOTHING, by_kind=rows, advice=advice))
    assert [change.setting for change in found] == [
        "make run WORKERS=8 PURGATORY_SIGNALS=redis://localhost:6379",
        "WaitSettings(default_wait=50)",
        "timeout=12.5  # of kind park",
    ]
    few = advice | {"timeouts": [timeout("park", 10, 12_500_000)]}
    last = verdict(replace(NOTHING, by_kind=[kind_row(10_000, 0)], advice=few))[-1]
    assert last.setting == "Purgatory(tick_ms=1, wheel_size=512)"
    assert last.why.endswith("The service has no setting for it.")
    future = {"w-3": FutureRecords(2, "2099-01-01", "2099-01-01")}
    found = verdict(
        replace(
            NOTHING, by_kind=[kind_row(100, 50)], advice=advice, manifest=Manifest(future=future)
        )
    )
    assert len(found) == SHOWN_CHANGES
    assert [change.what for change in found[:2]] == [
        "Correct the clock of w-3",
        "Find out why workers die",
    ]
    assert found[0].why == "2 records are dated in the future and not in these figures."


def test_faults_that_are_too_few_for_a_change_are_a_line() -> None:
    """Up to 0.1 % lost operations and failed jobs, and all skipped files; none is no line."""
    jobs = {"kind": "job:pay", "operations": 3_000, "lost": 0}
    rows = [kind_row(7_000, 10), jobs]
    found = replace(
        NOTHING,
        by_kind=rows,
        failed_jobs=[{"kind": "job:pay", "jobs": 3, "error": "once"}],
        manifest=Manifest(bad={"a.parquet": "empty"}),
    )
    assert verdict(found) == []
    sentences = left_out(found, verdict(found))
    assert sentences == [
        "10 operations were lost (0.10%)",
        "3 jobs failed (0.10%)",
        "1 file was skipped",
    ]
    section = verdict_section([], [], sentences)
    assert (
        "Also found: 10 operations were lost (0.10%); 3 jobs failed (0.10%); 1 file "
        'was skipped. <a href="#read">What was read</a> says more of the data.'
    ) in section
    assert "Nothing needs to change" in section
    more = replace(found, by_kind=[kind_row(7_000, 11), jobs], manifest=Manifest())
    assert left_out(more, verdict(more)) == ["3 jobs failed (0.10%)"]
    assert [change.what for change in verdict(more)] == ["Find out why workers die"]
    assert left_out(NOTHING, verdict(NOTHING)) == []
    assert "Also found" not in verdict_section(verdict(more), [])


def test_faults_behind_more_important_ones_are_a_line() -> None:
    """However many: half of all jobs must not vanish behind three faults of the data."""
    jobs = {"kind": "job:pay", "operations": 1_000, "lost": 0}
    starts = {"a": WorkerStart("w-1", 5, 1, 9, "2026-11-20T06:00:00+00:00")}
    future = {"w-3": FutureRecords(2, "2099-01-01", "2099-01-01")}
    found = replace(
        NOTHING,
        by_kind=[kind_row(1_000, 100), jobs],
        failed_jobs=[{"kind": "job:pay", "jobs": 500, "error": "boom"}],
        manifest=Manifest(future=future, starts=starts),
    )
    assert len(verdict(found)) == SHOWN_CHANGES
    [sentence] = left_out(found, verdict(found))
    assert sentence == "500 jobs of 1,000 failed, most of them of job:pay: boom"


def test_what_was_skipped_is_said() -> None:
    """Files, and records of the files that were read."""
    for manifest, sentence in (
        (Manifest(), "no file, and no record"),
        (Manifest(bad={"a": "empty"}), "1 file could not be read, so counts are too low"),
        (Manifest(unknown_rows=1), "1 record of unknown events, or without identifier or time"),
    ):
        found = replace(NOTHING, manifest=manifest)
        assert f"<dt>Skipped</dt><dd>{sentence}</dd>" in read_section(found, None)
    one = replace(NOTHING, manifest=Manifest(future={"w": FutureRecords(1, "2099", "2099")}))
    assert verdict(replace(one, advice=ADVICE))[0].why.startswith("1 record is dated in the future")
