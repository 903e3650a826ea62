"""The verdict of the report: which targets are missed, and what to do first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.pipeline.advise.advice import Targets
from purgatory.pipeline.outcomes.event_summary import FutureRecords, WorkerStart
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.report.findings import Findings
from purgatory.pipeline.report.sections import read_section, verdict_section
from purgatory.pipeline.report.verdict import SHOWN_CHANGES, Verdict, verdict
from purgatory.pipeline.statistics import bucket
from tests.pipeline.test_charts import NOTHING

FUTURE = {"w-3": FutureRecords(2, "2099-01-01", "2099-01-01")}


def timeout(kind: str, advised_us: int | None) -> dict[str, Any]:
    """Return the advice on a kind with a timeout of 25 s."""
    return {
        "kind": kind,
        "advised_us": advised_us,
        "timeout_us": 25_000_000,
        "reason": f"why {kind}",
    }


def kind_row(kind: str = "park", operations: int = 10_000, **counts: int) -> dict[str, Any]:
    """Return a row of the table by kind."""
    nothing = dict.fromkeys(("expired", "lost", "drained", "open"), 0)
    return {"kind": kind, "operations": operations, **nothing, **counts}


def judged(*rows: dict[str, Any], **more: Any) -> Verdict:
    """Return the verdict on rows by kind, with the default targets."""
    return verdict(replace(NOTHING, by_kind=rows, **more), Targets())


def test_most_requests_that_expire_are_what_comes_first() -> None:
    """However short the advised timeout is, and though nobody knows a right one."""
    found = judged(
        kind_row("watch", expired=6_000),
        kind_row("park", expired=150, drained=300),
        advice={"timeouts": [timeout("watch", None), timeout("park", 50_000_000)]},
    )
    assert [str(harm) for harm in found.missed] == [
        "60.0% of watch expired",
        "3.0% of park were drained",
        "1.5% of park expired",
    ]
    first, _, last = found.shown
    assert first.why == "6,000 of 10,000; the target is 1.00%. why watch"
    assert not first.setting
    assert last.setting == "timeout=50  # of kind park"
    assert "What to change first" in verdict_section(found)


def test_a_shorter_timeout_is_never_advised() -> None:
    """It would let more of them expire, and save next to nothing."""
    for advised_us in (10_000_000, 27_000_000):
        advice = {"timeouts": [timeout("park", advised_us)]}
        assert judged(kind_row(expired=8), advice=advice).changes == []
        [change] = judged(kind_row(expired=800), advice=advice).changes
        assert not change.setting


def test_settings_are_those_of_the_kind() -> None:
    """Of a watch the service has one; the middleware's clients ask for theirs."""
    settings = {"watch": "WaitSettings(default_wait=50)", "long-poll": "Prefer: wait=50"}
    for kind, setting in settings.items():
        advice = {"timeouts": [timeout(kind, 50_000_000)]}
        [change] = judged(kind_row(kind, expired=900), advice=advice).changes
        assert change.setting == setting


def test_what_is_rarer_by_its_target_weighs_more() -> None:
    """30 lost operations of 10,000 are three times their target, 150 expired ones 1.5 times."""
    found = judged(kind_row("park", expired=150), kind_row("watch", lost=30))
    assert [str(harm) for harm in found.missed] == [
        "0.3% of watch were lost",
        "1.5% of park expired",
    ]
    few = verdict(
        replace(NOTHING, by_kind=[kind_row(expired=150)]), Targets.of("expired=5%, lost=0.001")
    )
    assert (few.missed, few.unclear) == ([], [])
    section = verdict_section(few)
    assert "Every target is met" in section and 'class="card good"' in section
    assert 'data-label="target">5.00%</td>' in section


def test_too_few_operations_are_not_called_good() -> None:
    """The kinds are named, of which nothing is known yet."""
    section = verdict_section(judged(kind_row("watch", 50, expired=1)))
    assert "No target is known to be missed" in section and "good" not in section
    assert "too few operations to tell for all targets of watch." in section
    assert "too few to tell" in section
    assert "<table" not in verdict_section(judged())


def test_jobs_may_expire_and_are_late_later() -> None:
    """They run at their deadline. What fires an event stream does not end it."""
    buckets = {"job:mail": bucket(1_000_000), "park": bucket(1_000_000)}
    late = [{"kind": kind, "bucket": at, "count": 500} for kind, at in buckets.items()]
    late += [row | {"bucket": bucket(1_000), "count": 9_500} for row in late]
    found = judged(
        kind_row("job:mail", expired=10_000),
        kind_row("stream", expired=10_000),
        kind_row("park"),
        lateness_counts=late,
        failed_jobs=[{"kind": "job:mail", "jobs": 60, "error": "no route"}],
    )
    assert [str(harm) for harm in found.missed] == [
        "0.6% of job:mail failed",
        "5.0% of park were late",
    ]
    failed, late_park = found.changes
    assert failed.why == "60 of 10,000; the target is 0.10%. The latest error: no route"
    assert failed.setting == "purgatory jobs list --state failed --handler mail"
    assert "more than 250 ms after their deadlines" in late_park.why
    very_late = [{"kind": "job:mail", "bucket": bucket(9_000_000), "count": 500}]
    [change] = judged(kind_row("job:mail"), lateness_counts=very_late).changes
    assert "more than 5 s after they were due" in change.why


@pytest.mark.parametrize("crashed", [0, 12])
def test_workers_died_only_where_a_crash_is_known(crashed: int) -> None:
    """The rollups have a wait of what a crash lost, and none of what is lost otherwise."""
    ends = {"kind": "park", "outcome": "lost"}
    counts = [{**ends, "bucket": 900, "count": crashed}] * bool(crashed)
    counts.append({**ends, "bucket": None, "count": 50 - crashed})
    [change] = judged(kind_row(lost=50), wait_counts=counts).changes
    assert ("died" in change.why) == bool(crashed)
    assert ("12 of them" in change.why) == bool(crashed)


def test_faults_of_the_data_come_first() -> None:
    """Files that are skipped explain what is missing; else the journal dropped it."""
    at = "2026-11-20T06:00:00+00:00"
    starts = {"a": WorkerStart("w-1", at, at, [[1, 3], [8, 9]])}
    rows = [kind_row(lost=900)]
    found = judged(*rows, manifest=Manifest(future=FUTURE, starts=starts))
    assert [change.what for change in found.changes] == [
        "Correct the clock of w-3",
        "Let the journal keep up",
        "9.0% of park were lost",
    ]
    assert found.changes[0].why == "2 records are dated in the future and not in these figures."
    skipped = judged(*rows, manifest=Manifest(bad={"a.parquet": "empty"}, starts=starts))
    assert skipped.changes[0].what == ("Repair or replace 1 file that cannot be read")
    assert skipped.changes[0].why.endswith("4 records are missing.")
    assert "Let the journal keep up" not in [change.what for change in skipped.changes]
    one = judged(manifest=Manifest(future={"w": FutureRecords(1, "2099", "2099")}))
    assert one.changes[0].why.startswith("1 record is dated in the future")


def test_what_is_not_shown_is_a_line() -> None:
    """However many: half of all jobs must not vanish behind faults; nor what is within a target."""
    found = judged(
        kind_row("park", lost=900, drained=500),
        kind_row("job:pay"),
        kind_row("job:mail", lost=4),
        failed_jobs=[
            {"kind": "job:pay", "jobs": 10, "error": "boom"},
            {"kind": "job:mail", "jobs": 5_000, "error": "boom"},
        ],
        manifest=Manifest(future=FUTURE),
        advice={"workers": {"workers": 8, "reason": "the peak"}},
    )
    assert len(found.shown) == SHOWN_CHANGES
    assert found.left_out == [
        "5.0% of park were drained",
        "Run 8 workers",
        "10 operations of job:pay failed (0.10%)",
        "4 operations of job:mail were lost (0.04%)",
    ]
    assert "Also found: 5.0% of park were drained; Run 8 workers;" in verdict_section(found)
    assert found.changes[-1].setting == (
        "make run WORKERS=8 PURGATORY_SIGNALS=redis://localhost:6379"
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400), st.integers(0, 9)),
        max_size=9,
    )
)
def test_a_harm_is_missed_met_or_unclear(rows: list[tuple[int, int, int, int]]) -> None:
    """Of each kind, and exactly one of them; what is still open counts for none."""
    table = [
        kind_row(
            f"k{place}", sum(row) + 1, expired=row[0], lost=row[1], drained=row[2], open=row[3]
        )
        for place, row in enumerate(rows)
    ]
    found = judged(*table)
    assert len(found.harms) == 3 * len(rows)
    for harm in found.harms:
        states = (harm.is_missed, harm.is_met, harm in found.unclear)
        assert sum(states) == 1
        assert not (harm.is_missed and harm.share <= harm.target)
    weights = [harm.weight for harm in found.harms]
    assert weights == sorted(weights, reverse=True)


def test_what_was_skipped_is_said() -> None:
    """Files, and records of the files that were read."""
    for manifest, sentence in (
        (Manifest(), "no file, and no record"),
        (Manifest(bad={"a": "empty"}), "1 file could not be read, so counts are too low"),
        (Manifest(unknown_rows=1), "1 record unknown, incomplete, or of an impossible time"),
    ):
        found: Findings = replace(NOTHING, manifest=manifest)
        assert f"<dt>Skipped</dt><dd>{sentence}</dd>" in read_section(found, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gone=1%", "unknown target 'gone': choose from expired, lost"),
        ("lost", "the target of lost is nan: give a share"),
        ("lost=0", "the target of lost is 0: give a share above 0"),
        ("lost=101%", "at most 100%"),
        ("", "unknown target ''"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    """With what could be given."""
    with pytest.raises(ValueError, match=said):
        Targets.of(text)
    assert Targets.of(str(Targets())) == Targets()
