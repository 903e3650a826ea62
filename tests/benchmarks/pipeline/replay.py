"""`make bench-replay`: Kafka's load through the purgatory, on Spark and in one plain process."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

import purgatory.timer
from purgatory.pipeline import SyntheticLoad, WhatIf, replay_synthetic, spark_session
from purgatory.pipeline.replay.loads import KAFKA_LOW
from purgatory.pipeline.replay.replay import simulation
from tests.benchmarks.pipeline.goals import LEAST_OPERATIONS, LEAST_SPEEDUP

_SLICE_S = 1
_WARM_UPS = 10


@dataclass(frozen=True, slots=True)
class _Measured:
    """One replay."""

    seconds: float
    cpu_s: float


def main() -> int:
    """Replay in turn, print the best of each and what they come to; return the exit status."""
    parser = argparse.ArgumentParser(prog="make bench-replay ARGS=...", description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    load = replace(KAFKA_LOW, operations=options.operations, shards=8)
    spark = spark_session("bench-replay", master=options.master)
    # Otherwise this would compare the two forms of the core.
    assert _workers_core(spark) == purgatory.timer.compiled
    # Starts the workers, which stay, and has Java compile what it runs for every job.
    for _ in range(_WARM_UPS):
        _on_spark(spark, replace(load, operations=max(1, load.operations // 100)))
    rounds = [(_on_spark(spark, load), _plain(load)) for _ in range(options.rounds)]
    spark.stop()
    sys.stdout.write(_said(load, rounds, options.master))
    return 0 if _is_fast(load, rounds, options.master) else 1


def _is_fast(load: SyntheticLoad, rounds: list[tuple[_Measured, _Measured]], master: str) -> bool:
    """Return whether the goal is met, which is for two cores and a load of some seconds.

    By CPU: on a busy machine neither has both cores.
    """
    if master != "local[2]" or load.operations < LEAST_OPERATIONS:
        return True
    on_spark = min(spark.cpu_s for spark, _ in rounds)
    plain = min(one.cpu_s for _, one in rounds)
    return 2 * plain / on_spark >= LEAST_SPEEDUP


def _workers_core(spark: SparkSession) -> bool:
    """Return whether the core that the workers import is compiled."""
    return spark.sparkContext.parallelize([0], 1).map(lambda _: purgatory.timer.compiled).first()


def _on_spark(spark: SparkSession, load: SyntheticLoad) -> _Measured:
    started, cpu_s = time.perf_counter(), _cpu_below(os.getpid())
    # All columns reach Spark; this process, like the plain one, looks at what it counts only.
    slices = replay_synthetic(spark, load, slice_s=_SLICE_S).select("operations").collect()
    assert sum(row["operations"] for row in slices) == load.operations
    return _Measured(time.perf_counter() - started, _cpu_below(os.getpid()) - cpu_s)


def _plain(load: SyntheticLoad) -> _Measured:
    started, cpu_s = time.perf_counter(), time.process_time()
    count = sum(
        piece.operations
        for shard in range(load.shards)
        for piece in simulation(WhatIf(), _SLICE_S).run(load.batches(shard))
    )
    assert count == load.operations
    return _Measured(time.perf_counter() - started, time.process_time() - cpu_s)


def _said(load: SyntheticLoad, rounds: list[tuple[_Measured, _Measured]], master: str) -> str:
    on_spark = min(spark.seconds for spark, _ in rounds)
    plain = min(one.seconds for _, one in rounds)
    cpu = min(spark.cpu_s for spark, _ in rounds), min(one.cpu_s for _, one in rounds)
    count, rate = load.operations, load.operations / on_spark
    far = ", ".join(f"{number:,.0f}: {number / rate / 60:,.1f} min" for number in (1e8, 1e9, 1e12))
    form = "compiled" if purgatory.timer.compiled else "plain Python"
    return (
        f"core: {form}; load when it ended: {os.getloadavg()[0]:.1f}\n"
        f"{master}: {rate:,.0f} operations/s, {cpu[0] / count * 1e6:.2f} us of CPU each\n"
        f"one plain process: {count / plain:,.0f} operations/s, "
        f"{cpu[1] / count * 1e6:.2f} us of CPU each\n"
        f"{plain / on_spark:.2f} times as fast; by CPU alone, 2 idle cores would be "
        f"{2 * cpu[1] / cpu[0]:.2f} times as fast as one\n"
        f"at the rate of {master}, {far}\n"
    )


def _cpu_below(pid: int) -> float:
    """Return the CPU time of all processes below one: the JVM, and the workers below that."""
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue  # It ended in between.
        children.setdefault(int(fields[1]), []).append(int(entry))
        ticks = sum(int(field) for field in fields[11:15])
        times[int(entry)] = ticks / os.sysconf("SC_CLK_TCK")

    def below(parent: int) -> float:
        return sum(times[child] + below(child) for child in children.get(parent, []))

    return below(pid)


if __name__ == "__main__":
    sys.exit(main())
