"""One shard of a load through the real timer and the real purgatory, in simulated time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from purgatory.pipeline.replay.loads import (
    KAFKA_HIGH,
    KAFKA_LOW,
    NEVER_NS,
    Fate,
    LoadBatch,
    SyntheticLoad,
    WhatIf,
)
from purgatory.pipeline.replay.replay import Simulation
from purgatory.pipeline.replay.summary import TimeSlice
from purgatory.pipeline.statistics import bucket

MS = 1_000_000

Operation = tuple[float, int, float | None, Fate, str]
"""Arrival in ms, delay in ms, end in ms, fate, key."""


def batch(*operations: Operation) -> LoadBatch:
    return LoadBatch(
        arrival_ns=np.array([int(arrival * MS) for arrival, *_ in operations]),
        delay_ms=np.array([operation[1] for operation in operations]),
        end_ns=np.array(
            [NEVER_NS if end is None else int(end * MS) for _, _, end, *_ in operations]
        ),
        fate=np.array([int(operation[3]) for operation in operations]),
        keys=[(operation[4],) for operation in operations],
        fired_keys=[
            operation[4] if operation[3] is Fate.FIRED else None for operation in operations
        ],
    )


def run(*batches: LoadBatch, **options: int) -> list[TimeSlice]:
    return list(Simulation(**options).run(batches))


def only(slices: Iterable[TimeSlice]) -> TimeSlice:
    (found,) = slices
    return found


def counts(piece: TimeSlice) -> tuple[int, int, int, int]:
    return piece.operations, piece.fired, piece.expired, piece.cancelled


def test_each_fate_comes_true() -> None:
    """By hand, through the key, cancelled, or by the deadline."""
    found = only(
        run(
            batch(
                (1000.0, 50, 1010, Fate.FORCED, "a"),
                (1000.0, 50, 1020, Fate.FIRED, "b"),
                (1000.0, 50, 1030, Fate.CANCELLED, "c"),
                (1000.0, 50, None, Fate.NONE, "d"),
            )
        )
    )
    assert counts(found) == (4, 2, 1, 1)
    assert (found.newly_expired, found.unknown, found.peak, found.waiting) == (0, 0, 4, 0)


def test_the_deadline_comes_first_where_it_is_earlier() -> None:
    """A shorter timeout expires what ended otherwise; what was unknown is said to be unknown."""
    found = only(
        run(batch((1000.0, 5, 1010, Fate.FIRED, "a"), (1001.0, 5, None, Fate.UNKNOWN, "a")))
    )
    assert counts(found) == (2, 0, 2, 0)
    assert (found.newly_expired, found.unknown) == (1, 1)


def test_a_key_completes_at_once_all_who_fired_through_it_then_and_no_others() -> None:
    """One check for one moment; who watches the key and fired later waits on."""
    found = run(
        batch(
            (1000.0, 5_000, 1010, Fate.FIRED, "a"),
            (1001.0, 5_000, 1010, Fate.FIRED, "a"),
            (1002.0, 5_000, 3500, Fate.FIRED, "a"),
        ),
        slice_ms=1_000,
    )
    assert [(piece.fired, piece.waiting) for piece in found] == [(2, 1), (0, 1), (1, 0)]


def test_an_end_at_the_moment_of_arrival_counts() -> None:
    """Where the key has just been fired, the operation completes before it watches."""
    found = only(
        run(batch((1000.0, 50, 1001, Fate.FIRED, "a"), (1001.0, 50, 1001, Fate.FIRED, "a")))
    )
    assert counts(found) == (2, 2, 0, 0)


def test_an_end_before_the_arrival_is_one_at_the_arrival() -> None:
    """Whatever a record says: nothing ends before it is there."""
    fates = (Fate.FORCED, Fate.FIRED, Fate.CANCELLED)
    found = only(run(batch(*((1000.0, 50, 990, fate, fate.name) for fate in fates))))
    assert counts(found) == (3, 2, 0, 1)


def test_a_crowd_that_expires_at_once_is_counted_whole() -> None:
    """More than are noted one by one."""
    found = only(run(batch(*[(1000.0, 50, None, Fate.UNKNOWN, "a")] * 10_001)))
    assert counts(found) == (10_001, 0, 10_001, 0)
    assert (found.unknown, found.longest_run, found.lateness) == (10_001, 10_001, {0: 10_001})


def test_nothing_is_late_by_more_than_a_tick() -> None:
    """Lateness is what rounding up to a tick makes of it."""
    found = only(run(batch((1000.25, 10, None, Fate.NONE, "a")), tick_ms=4))
    assert (found.latest_us, found.lateness) == (1_750, {bucket(1_750): 1})


def test_the_wheel_s_levels_show_in_the_cascades() -> None:
    """Beyond 20 ticks a task is moved down once, beyond 400 twice."""
    near = only(run(batch((1000.0, 15, None, Fate.NONE, "a")), wheel_size=20))
    far = only(run(batch((1000.0, 35, None, Fate.NONE, "a")), wheel_size=20))
    farther = only(run(batch((1000.0, 9_037, None, Fate.NONE, "a")), wheel_size=20))
    assert near.cascaded < far.cascaded < farther.cascaded


def test_how_the_load_is_cut_into_batches_changes_nothing() -> None:
    """Operations are carried from a batch to the next as long as something is to come of them."""
    load = replace(KAFKA_HIGH, operations=4_000, shards=1)
    (whole,) = load.batches(0)

    def part(low: int, high: int) -> LoadBatch:
        return LoadBatch(
            arrival_ns=whole.arrival_ns[low:high],
            delay_ms=whole.delay_ms[low:high],
            end_ns=whole.end_ns[low:high],
            fate=whole.fate[low:high],
            keys=whole.keys[low:high],
            fired_keys=whole.fired_keys[low:high],
        )

    parts = [part(low, low + 130) for low in range(0, 4_000, 130)]
    at_once = run(whole, slice_ms=10)
    in_parts = run(*parts, slice_ms=10)
    for piece in (*at_once, *in_parts):
        piece.cpu_ns = 0
    assert in_parts == at_once
    assert len(at_once) > 20


@pytest.mark.parametrize("load", [KAFKA_LOW, KAFKA_HIGH])
def test_of_kafka_s_load_the_share_expires_that_the_distribution_says(load: SyntheticLoad) -> None:
    """About 8 % and 50 %; and as many wait as Little's law says."""
    load = replace(load, operations=20_000, rate_per_s=10_000, shards=1)
    slices = list(Simulation(slice_ms=100).run(load.batches(0)))
    mu = math.log(load.median_ms)
    sigma = (math.log(load.quartile_ms) - mu) / 0.67449
    share = math.erfc((math.log(load.timeout_ms) - mu) / sigma / math.sqrt(2)) / 2
    expired = sum(piece.expired for piece in slices)
    assert expired + sum(piece.fired for piece in slices) == 20_000
    assert expired / 20_000 == pytest.approx(share, rel=0.1)
    # The mean of the shorter of latency and timeout, which are drawn once more.
    latency = np.random.default_rng(1).lognormal(mu, sigma, 100_000)
    mean_s = float(np.minimum(latency, load.timeout_ms).mean()) / 1_000
    waiting = [piece.waiting for piece in slices[5:20]]
    assert sum(waiting) / len(waiting) == pytest.approx(10_000 * mean_s, rel=0.1)


def test_shards_of_a_load_make_the_whole() -> None:
    """Each has its part of the operations, and keys that no other has."""
    load = SyntheticLoad(operations=1_003, shards=4, key_sets=3)
    batches = [found for shard in range(4) for found in load.batches(shard)]
    assert sum(len(found) for found in batches) == 1_003
    keys = [{key for keys in found.keys for key in keys} for found in batches]
    assert [len(found) for found in keys] == [9, 9, 9, 9]
    assert len(set().union(*keys)) == 36


@pytest.mark.parametrize(
    "wrong", [{"traffic": 0}, {"timeout": math.nan}, {"tick_ms": 0}, {"wheel_size": 1}]
)
def test_a_question_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    """The sentence names the value and what to give."""
    with pytest.raises(ValueError, match=r"is (0|nan|1): give"):
        WhatIf(**wrong)  # type: ignore[arg-type] # each is one of them


@pytest.mark.parametrize(
    "wrong", [{"operations": 0}, {"rate_per_s": math.inf}, {"median_ms": 9, "quartile_ms": 8}]
)
def test_a_load_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    """Likewise."""
    with pytest.raises(ValueError, match="give"):
        SyntheticLoad(**wrong)
