"""The command `replay`."""

from __future__ import annotations

import argparse
import time
from dataclasses import fields

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.command import Call, Command
from purgatory.pipeline.replay import replay, replay_synthetic
from purgatory.pipeline.replay_summary import (
    ReplaySummary,
    replay_by_shard,
    replay_by_time,
    replay_summary,
)
from purgatory.pipeline.schema import JOB_KIND
from purgatory.pipeline.synthetic_load import KAFKA_HIGH, KAFKA_LOW, SyntheticLoad
from purgatory.pipeline.what_if import Growth, WhatIf

JOB = "replay"

_KAFKA = {"kafka-low": KAFKA_LOW, "kafka-high": KAFKA_HIGH}
_WHAT_IF = WhatIf()
# What an answer to "how far is it" is given for.
_FAR = {"100 M": 1e8, "1 B": 1e9, "1 T": 1e12}


def run_replay(call: Call) -> str:
    """Replay the outcomes, or a load that is drawn, and say what it came to."""
    options = call.options
    what_if = WhatIf(
        traffic=options.traffic,
        timeout=options.timeout,
        growth=options.growth,
        tick_ms=options.tick_ms,
        wheel_size=options.wheel_size,
    )
    started = time.monotonic()
    call.tables.fill(JOB, lambda new: _write(call, new, _replayed(call, what_if)))
    seconds = time.monotonic() - started
    written = call.spark.read.parquet(call.tables.folder.at(f"{JOB}/slices"))
    return described(replay_summary(written, slice_s=options.slice), seconds)


def described(summary: ReplaySummary, seconds: float) -> str:
    """Return what a person wants to know of a replay that took so many `seconds`."""
    count = max(1, summary.operations)
    rate = summary.operations / seconds
    late = ", ".join(f"{value / 1000:.2f} ms at {at:g} %" for at, value in _late(summary))
    lines = [
        f"{summary.operations:,} operations in {summary.seconds:,.0f} simulated seconds: "
        f"{summary.fired:,} fired, {summary.expired:,} expired ({summary.expired / count:.1%}), "
        f"{summary.cancelled:,} cancelled or drained.",
        f"{summary.newly_expired:,} expired that had ended otherwise; of {summary.unknown:,} that "
        "expired the load does not say what would have become of them.",
        f"Late by {late}." if late else "None expired, so none was late.",
        f"At most {summary.peak_at_least:,} to {summary.peak_at_most:,} waited at once; "
        f"{summary.cascaded / count:.2f} moves down the wheel for each, {summary.buckets:,} "
        f"buckets opened, {summary.longest_run:,} tasks in the fullest.",
        f"{summary.cpu_ns_per_operation / 1000:.2f} us of CPU for each; a worker with the busiest "
        f"of {summary.shards} shards is busy {summary.busiest_shard:.1%} of its worst slice.",
        f"Replayed {rate:,.0f} operations/s. At that rate "
        + ", ".join(f"{name} take {_duration(far / rate)}" for name, far in _FAR.items())
        + ".",
    ]
    return "\n".join(lines)


def _replayed(call: Call, what_if: WhatIf) -> DataFrame:
    options = call.options
    if options.load == "recorded":
        # Jobs waited in their store, and would be parked here for as long.
        parked = call.outcomes.read().where(~F.col("kind").startswith(JOB_KIND))
        return replay(parked, what_if, shards=options.shards, slice_s=options.slice)
    given = {
        field.name: value
        for field in fields(SyntheticLoad)
        if (value := getattr(options, field.name, None)) is not None
    }
    kafka = _KAFKA[options.load]
    load = SyntheticLoad(
        **{"median_ms": kafka.median_ms, "quartile_ms": kafka.quartile_ms, **given}
    )
    return replay_synthetic(call.spark, load, what_if, slice_s=options.slice)


def _write(call: Call, new: str, replayed: DataFrame) -> None:
    call.say(f"{JOB}: playing")
    at = call.tables.folder.at
    replayed.write.mode("overwrite").parquet(at(f"{new}/slices"))
    slices = call.spark.read.parquet(at(f"{new}/slices"))
    for name, table in (
        ("by_time", replay_by_time(slices)),
        ("by_shard", replay_by_shard(slices)),
    ):
        call.say(f"{JOB}: {name}")
        table.coalesce(1).write.mode("overwrite").parquet(at(f"{new}/{name}"))


def _late(summary: ReplaySummary) -> list[tuple[float, int]]:
    return sorted(summary.lateness_us.items())


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--load",
        choices=["recorded", *_KAFKA],
        default="recorded",
        help="the outcomes below --out, or one that is drawn (default %(default)s)",
    )
    add("--traffic", type=float, default=_WHAT_IF.traffic, help="so many times as much")
    add("--timeout", type=float, default=_WHAT_IF.timeout, help="so many times each timeout")
    add(
        "--growth",
        type=Growth,
        choices=list(Growth),
        default=_WHAT_IF.growth,
        help="where more traffic comes from: more keys, or the same (default %(default)s)",
    )
    add("--tick-ms", type=int, default=_WHAT_IF.tick_ms, help="of the wheel (default %(default)s)")
    add("--wheel-size", type=int, default=_WHAT_IF.wheel_size, help="default %(default)s")
    add("--shards", type=int, default=16, help="workers that share the keys (default %(default)s)")
    add("--slice", type=int, default=60, metavar="SECONDS", help="one row each (default 60)")
    drawn = parser.add_argument_group("a load that is drawn")
    drawn.add_argument("--operations", type=int, help="before --traffic (default 1000000)")
    drawn.add_argument("--rate", type=float, dest="rate_per_s", help="a second (default 100000)")
    drawn.add_argument("--timeout-ms", type=int, help="before --timeout (default 200)")
    drawn.add_argument("--median-ms", type=float, help="half of the latencies are below")
    drawn.add_argument("--quartile-ms", type=float, help="three quarters of them are below")
    drawn.add_argument("--key-sets", type=int, help="of each shard (default 1)")
    drawn.add_argument("--keys-each", type=int, help="of each operation (default 3)")
    drawn.add_argument("--seed", type=int, help="another one draws other numbers")


COMMAND = Command(
    name="replay",
    help="the outcomes, or a load that is drawn, through the real timer: what if",
    run=run_replay,
    add_arguments=_add_arguments,
)
