"""Snapshots, and counters that go on whatever begins anew."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from purgatory.metrics import catalog
from purgatory.metrics.measure import Buckets, RunningTotals, Snapshot

LABELS = st.sampled_from(["fired", "expired", "\ud800", 'a"b\\c\n'])
SNAPSHOTS = st.builds(
    Snapshot,
    at_ms=st.integers(0, 2**53),
    has_ended=st.booleans(),
    counters=st.dictionaries(st.tuples(LABELS, st.tuples(LABELS)), st.integers(0, 2**53)),
    gauges=st.dictionaries(st.tuples(LABELS, st.tuples()), st.floats(0, 1e9)),
    histograms=st.dictionaries(
        st.tuples(LABELS, st.tuples(LABELS, LABELS)),
        st.builds(
            Buckets,
            bounds_ms=st.just((5, 10)),
            counts=st.lists(st.integers(0, 2**53), min_size=3, max_size=3),
            total_ms=st.integers(0, 2**53),
        ),
    ),
)
# What a count is at each snapshot, until it begins anew.
LIVES = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=5)


@given(snapshot=SNAPSHOTS)
def test_a_snapshot_is_read_as_it_was_written(snapshot: Snapshot) -> None:
    """With all labels, whatever is in them."""
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


@given(snapshot=SNAPSHOTS, cut=st.integers(0, 200))
def test_what_is_no_snapshot_is_none(snapshot: Snapshot, cut: int) -> None:
    """Half a file, a file of another version, a file of something else."""
    text = snapshot.to_json()
    assert Snapshot.from_json(text[: min(cut, len(text) - 1)]) is None
    assert Snapshot.from_json(json.dumps({**json.loads(text), "format": 2}).encode()) is None
    assert Snapshot.from_json(b"[]") is None


@given(steps=LIVES, handed_over=st.sets(st.integers(0, 5)))
def test_counters_go_on(steps: list[list[int]], handed_over: set[int]) -> None:
    """By the model: the sum of all increments, over reopenings and over processes."""
    totals = RunningTotals()
    last: Snapshot | None = None
    before = 0.0
    for life, increments in enumerate(steps):
        if life in handed_over:
            # A new process in the place of the one before.
            read = None if last is None else Snapshot.from_json(last.to_json())
            totals = RunningTotals(read)
        value = 0
        for increment in increments:
            value += increment
            snapshot = Snapshot()
            snapshot.put(catalog.FIRES, value)
            totals.add_to(snapshot)
            total = snapshot.counters[catalog.FIRES.name, ()]
            # A count that begins anew and is not below the last one is not noticed in between.
            assert before <= total
            before, last = total, snapshot
    assert before <= sum(map(sum, steps))
    if len(steps) == 1:
        assert before == sum(steps[0])


def test_the_next_worker_shows_what_the_one_before_has_counted() -> None:
    """Also series and buckets that it has not counted in yet, and none with other bounds."""
    before = Snapshot()
    before.put(catalog.REFUSED, 3, "max_parked")
    before.put_buckets(catalog.WAIT_SECONDS, Buckets((5, 10), [1, 2, 3], 40), "watch", "fired")
    before.put_buckets(catalog.LATENESS_SECONDS, Buckets((1,), [1, 0], 1))
    totals = RunningTotals(before)
    first, second = Snapshot(), Snapshot()
    totals.add_to(first)
    second.put(catalog.REFUSED, 1, "max_parked")
    second.put_buckets(catalog.WAIT_SECONDS, Buckets((5, 10), [1, 0, 0], 4), "watch", "fired")
    second.put_buckets(catalog.LATENESS_SECONDS, Buckets((2,), [7, 0], 7))
    totals.add_to(second)
    waits = catalog.WAIT_SECONDS.name, ("watch", "fired")
    assert first.counters == before.counters and first.histograms == before.histograms
    assert second.counters == {(catalog.REFUSED.name, ("max_parked",)): 4}
    assert second.histograms[waits] == Buckets((5, 10), [2, 2, 3], 44)
    assert second.histograms[catalog.LATENESS_SECONDS.name, ()].counts == [7, 0]
