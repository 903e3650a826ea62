"""The command `replay`."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from purgatory.pipeline.cli.command import (
    POSITIVE,
    Command,
    NumberOption,
    add_numbers,
    number,
    whole,
)
from purgatory.pipeline.console import counted, duration, figure, percent
from purgatory.pipeline.replay.loads import (
    KAFKA_HIGH,
    KAFKA_LOW,
    MOST_FACTOR,
    Growth,
    SyntheticLoad,
    WhatIf,
)
from purgatory.pipeline.run import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from purgatory.pipeline.replay.summary import ReplaySummary

JOB = "replay"

RECORDED = "recorded"

_KAFKA = {"kafka-low": KAFKA_LOW, "kafka-high": KAFKA_HIGH}
# Of a synthetic load: flag, field of SyntheticLoad, type, unit and meaning.
_DRAWN = (
    ("--operations", "operations", whole(1), "COUNT", "before --traffic"),
    ("--rate", "rate_per_s", POSITIVE, "A_SECOND", "before --traffic"),
    ("--timeout-ms", "timeout_ms", whole(1), "MS", "before --timeout"),
    ("--median-ms", "median_ms", POSITIVE, "MS", "half of the latencies are below"),
    ("--quartile-ms", "quartile_ms", POSITIVE, "MS", "three quarters of them are below"),
    ("--key-sets", "key_sets", whole(1), "COUNT", "of each shard"),
    ("--keys-each", "keys_each", whole(1), "COUNT", "of each operation"),
    ("--seed", "seed", whole(0), "NUMBER", "of the random numbers"),
)
_WHAT_IF = WhatIf()
_FACTOR = number(f"above 0 and up to {MOST_FACTOR:,}", lambda found: 0 < found <= MOST_FACTOR)
_NUMBERS: tuple[NumberOption, ...] = (
    ("--traffic", _FACTOR, "FACTOR", _WHAT_IF.traffic, "so many times the operations"),
    ("--timeout", _FACTOR, "FACTOR", _WHAT_IF.timeout, "so many times each timeout"),
    ("--tick-ms", whole(1), "MS", _WHAT_IF.tick_ms, "of the wheel"),
    ("--wheel-size", whole(2), "COUNT", _WHAT_IF.wheel_size, "buckets of each level of the wheel"),
    ("--shards", whole(1), "COUNT", 16, "workers that share the keys"),
    ("--slice", whole(1), "SECONDS", 60, "of simulated time that a row of a shard sums up"),
)
# Numbers of operations whose time is estimated; not from a replay of which the start was a large
# part, and not for more than so many times its operations.
_FAR = {"100 M": 1e8, "1 B": 1e9, "1 T": 1e12}
_LEAST_S = 60
_MOST_TIMES = 1_000


def run_replay(run: Run) -> str:
    """Replay the outcomes, or a synthetic load, and return a summary."""
    # Spark may not be installed: the other commands do without.
    from purgatory.pipeline.replay.summary import replay_summary

    options = run.options
    what_if = WhatIf(
        traffic=options.traffic,
        timeout=options.timeout,
        growth=options.growth or _WHAT_IF.growth,
        tick_ms=options.tick_ms,
        wheel_size=options.wheel_size,
    )
    started = time.monotonic()
    run.tables.fill(JOB, lambda new: _write(run, new, _replayed(run, what_if)))
    seconds = time.monotonic() - started
    written = run.spark.read.parquet(run.tables.folder.pattern(f"{JOB}/slices"))
    return described(replay_summary(written, slice_s=options.slice), seconds)


def described(summary: ReplaySummary, seconds: float) -> str:
    """Return the summary of a replay that took so many `seconds`, as text."""
    count = max(1, summary.operations)
    lines = [
        f"{counted(summary.operations, 'operation')} in "
        f"{counted(round(summary.seconds), 'simulated second')}: {summary.fired:,} fired, "
        f"{summary.expired:,} expired ({percent(summary.expired / count, 1)}), "
        f"{summary.cancelled:,} cancelled or drained.",
        f"Of the expired, {summary.newly_expired:,} had ended otherwise; for {summary.unknown:,} "
        "the load does not show how they would have ended.",
        _late(summary),
        f"Peak of waiting operations: {_between(summary.peak_at_least, summary.peak_at_most)}; "
        f"{summary.cascaded / count:.2f} moves down the wheel each, "
        f"{counted(summary.buckets, 'bucket')} opened, "
        f"{counted(summary.longest_run, 'task')} in the fullest.",
        f"{summary.cpu_ns_per_operation / 1000:.2f} us of CPU each; a worker with the busiest "
        f"of {counted(summary.shards, 'shard')} is busy {percent(summary.busiest_shard, 1)} of its "
        "worst slice.",
        _how_far(summary.operations, seconds),
    ]
    return "\n".join(lines)


def _late(summary: ReplaySummary) -> str:
    if not summary.lateness_us:
        return "None expired."
    half, most, all_ = (duration(summary.lateness_us[at]) for at in (50.0, 99.0, 100.0))
    return f"Lateness of the expired: p50 {half}, p99 {most}, maximum {all_}."


def _between(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _how_far(operations: int, seconds: float) -> str:
    rate = operations / seconds
    text = f"Replayed in {duration(seconds * 1e6)}, the start included: {figure(rate)} a second."
    ahead = {
        name: far for name, far in _FAR.items() if operations < far <= operations * _MOST_TIMES
    }
    if seconds < _LEAST_S or not ahead:
        return text
    times = (f"{name} take {duration(far / rate * 1e6)}" for name, far in ahead.items())
    return f"{text} At that rate {', '.join(times)}."


def _replayed(run: Run, what_if: WhatIf) -> DataFrame:
    from purgatory.pipeline.replay.replay import replay_outcomes, replay_synthetic

    options = run.options
    if options.load != RECORDED:
        return replay_synthetic(run.spark, _drawn(options), what_if, slice_s=options.slice)
    return replay_outcomes(
        run.outcomes.read(), what_if, shards=options.shards, slice_s=options.slice
    )


def _drawn(options: argparse.Namespace) -> SyntheticLoad:
    given = {name: value for _, name, *_ in _DRAWN if (value := getattr(options, name)) is not None}
    return replace(_KAFKA[options.load], shards=options.shards, **given)


def _check(options: argparse.Namespace) -> None:
    if options.load != RECORDED:
        if options.growth is not None:
            raise ValueError(
                "--growth needs recorded operations: give --load recorded, or leave it out"
            )
        _drawn(options)
        return
    for flag, name, *_ in _DRAWN:
        if getattr(options, name) is not None:
            raise ValueError(
                f"{flag} needs a synthetic load: give --load {' or '.join(_KAFKA)} too, or "
                "leave it out"
            )


def _write(run: Run, new: str, replayed: DataFrame) -> None:
    from purgatory.pipeline.replay.summary import replay_by_shard, replay_by_time

    run.on_progress(f"{JOB}: replaying")
    at = run.tables.folder.at
    replayed.write.mode("overwrite").parquet(at(f"{new}/slices"))
    slices = run.spark.read.parquet(run.tables.folder.pattern(f"{new}/slices"))
    for name, table in (
        ("by_time", replay_by_time(slices)),
        ("by_shard", replay_by_shard(slices)),
    ):
        run.on_progress(f"{JOB}: {name}")
        table.coalesce(1).write.mode("overwrite").parquet(at(f"{new}/{name}"))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--load",
        choices=[RECORDED, *_KAFKA],
        default=RECORDED,
        help="the outcomes below --out, or a synthetic load (default %(default)s)",
    )
    add(
        "--growth",
        type=Growth,
        choices=list(Growth),
        help="of recorded operations: more traffic has more keys, or the same "
        f"(default {_WHAT_IF.growth})",
    )
    add_numbers(parser, *_NUMBERS)
    # Without defaults: with a recorded load these options would do nothing, and are refused.
    group = parser.add_argument_group("synthetic loads")
    for flag, name, kind, unit, text in _DRAWN:
        # Of either load.
        defaults = (str(getattr(load, name)).removesuffix(".0") for load in _KAFKA.values())
        shown = ", or ".join(dict.fromkeys(defaults))
        group.add_argument(
            flag, dest=name, type=kind, metavar=unit, help=f"{text} (default {shown})"
        )


COMMAND = Command(
    name="replay",
    help="what if: the outcomes, or a synthetic load, through the real timer",
    run=run_replay,
    add_arguments=_add_arguments,
    check=_check,
)
