"""What changed since the previous run: named if it is more than chance."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.report.changes import (
    KindSummary,
    RunSummary,
    as_json,
    changes,
    previous_of,
    summary_of,
)
from purgatory.pipeline.report.sections import changes_section
from purgatory.pipeline.statistics import bucket
from tests.pipeline.test_charts import NOTHING

BEFORE = RunSummary(
    as_of="2026-11-20T06:00:00+00:00",
    records=10,
    operations=5,
    journal="history",
    faults={"operations lost": 1},
    settings={"the timeout of park": "12 s"},
    kinds={"park": KindSummary(outcomes={"fired": 4_000}, waits={str(bucket(1_000_000)): 4_000})},
)
NOW = replace(BEFORE, as_of="2026-11-20T07:00:00+00:00", records=20, operations=9)


def added(outcomes: dict[str, int], waits_us: dict[int, int]) -> RunSummary:
    """Return the present run with so many more operations of the kind park."""
    known = BEFORE.kinds["park"]
    new = {str(bucket(wait_us) // 4 * 4): count for wait_us, count in waits_us.items()}
    kind = KindSummary(
        outcomes=dict(Counter(known.outcomes) + Counter(outcomes)),
        waits=dict(Counter(known.waits) + Counter(new)),
    )
    return replace(NOW, kinds={"park": kind})


def test_longer_waits_are_named_with_both_values() -> None:
    """Of what is new, not of everything: a year of short waits does not hide a bad hour."""
    found = changes(added({"fired": 2_000}, {2_000_000: 2_000}), BEFORE)
    assert found.operations == 4
    assert found.sentences == (
        "The p99 of the waits of park rose from 1.01 s to 2.02 s (+100%).",
        "The p50 of the waits of park rose from 1.01 s to 2.02 s (+100%).",
    )
    [kind] = found.kinds
    assert (kind.kind, kind.since.ended, kind.before.ended) == ("park", 2_000, 4_000)


def test_expiring_more_often_is_named() -> None:
    """If the intervals of both shares are apart."""
    sentences = changes(added({"fired": 900, "expired": 100}, {}), BEFORE).sentences
    assert sentences == ("The share of park that expired rose from 0.00% to 10.00%.",)
    assert changes(added({"fired": 9, "expired": 1}, {}), BEFORE).sentences == (
        "The share of park that expired rose from 0.00% to 10.00%.",
    )
    assert changes(added({"fired": 1}, {}), BEFORE).sentences == ()


@pytest.mark.parametrize(("expired", "is_marked"), [(0, False), (900, True)])
def test_a_share_is_marked_if_it_is_more_than_chance(expired: int, is_marked: bool) -> None:
    """One operation is no trend; both values are shown all the same."""
    known = KindSummary(outcomes={"fired": 393, "expired": 607}, waits={})
    more = {"fired": 394, "expired": 607 + expired}
    before = replace(BEFORE, kinds={"park": known})
    now = replace(NOW, kinds={"park": KindSummary(outcomes=more, waits={})})
    section = changes_section(changes(now, before))
    assert "<small>was 60.70%</small>" in section
    assert ("Nothing notable has changed" not in section) is is_marked
    assert ('<span class="hidden">up</span>' in section) is is_marked
    assert '<span class="hidden">down</span>' not in section


def test_a_new_kind_has_no_earlier_share() -> None:
    """Its row in the table has the present values only."""
    now = replace(NOW, kinds={"new": KindSummary(outcomes={"fired": 1}, waits={})})
    section = changes_section(changes(now, replace(BEFORE, kinds={})))
    assert "new is new: 1 operation ended." in section
    assert "was" not in section


def test_few_waits_are_no_percentile() -> None:
    """Ten must lie beyond it."""
    summary = KindSummary(outcomes={}, waits={"0": 999})
    assert summary.percentile_us(99) is None
    assert summary.percentile_us(50) == 1.5
    assert changes(added({"fired": 15}, {9_000_000: 15}), BEFORE).sentences == ()


def test_faults_kinds_and_advice_that_are_new_are_named() -> None:
    """Faults first, since they change all figures; and each with what it was."""
    now = replace(
        NOW,
        faults={"operations lost": 3, "files skipped": 0},
        settings={"the timeout of park": "14 s", "the number of workers": "2"},
        kinds={"new": KindSummary(outcomes={"fired": 1}, waits={})},
    )
    assert changes(now, BEFORE).sentences == (
        "2 more operations lost, 3 in all.",
        "new is new: 1 operation ended.",
        "The advice on the timeout of park was 12 s and is 14 s.",
    )


def test_the_same_records_have_the_same_previous_run() -> None:
    """A report that is written again does not compare itself with itself."""
    first = as_json(BEFORE, None)
    assert previous_of(None, BEFORE) is None
    assert previous_of(first, BEFORE) is None
    assert previous_of(first, NOW) == BEFORE
    assert previous_of(as_json(NOW, BEFORE), NOW) == BEFORE


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"version": 1}', '{"version": 2, "run": {"as_of": 3}}']
)
def test_a_damaged_summary_is_no_summary(text: str) -> None:
    """The report is written all the same."""
    assert previous_of(text, NOW) is None


counts = st.dictionaries(st.sampled_from(["0", "64", "128", "1000"]), st.integers(1, 10**6))


@given(counts, counts)
def test_what_was_added_is_the_difference(before: dict[str, int], more: dict[str, int]) -> None:
    """And what both have in common is nothing new."""
    old = KindSummary(outcomes=before, waits=before)
    both = dict(Counter(before) + Counter(more))
    assert KindSummary(outcomes=both, waits=both).since(old) == KindSummary(
        outcomes=more, waits=more
    )
    assert old.since(old).ended == 0


def test_the_summary_is_that_of_the_findings() -> None:
    """Only completed operations have a wait."""
    row: dict[str, Any] = {"kind": "park", "operations": 3, "fired": 2, "expired": 0}
    row |= {"cancelled": 0, "drained": 0, "outdated": 0, "lost": 1}
    waits = [
        {"kind": "park", "outcome": "fired", "bucket": 1001, "count": 2},
        {"kind": "park", "outcome": "lost", "bucket": 1001, "count": 1},
    ]
    advice = {
        "workers": {"workers": 2},
        "timeouts": [{"kind": "park", "advised_us": 12_000_000}],
    }
    found = summary_of(
        replace(
            NOTHING, manifest=Manifest(rows=7), by_kind=[row], wait_counts=waits, advice=advice
        ),
        None,
    )
    assert found.kinds["park"].waits == {"1000": 2}
    assert found.settings == {"the number of workers": "2", "the timeout of park": "12 s"}
    assert (found.faults["operations lost"], found.records) == (1, 7)
    assert previous_of(as_json(found, None), NOW) == found


def test_a_summary_of_another_version_is_not_compared() -> None:
    """It may count otherwise, which would be a change that nobody made."""
    text = as_json(BEFORE, None)
    assert previous_of(text, NOW) == BEFORE
    assert previous_of(text.replace('"version":1', '"version":2'), NOW) is None
