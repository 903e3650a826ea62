"""One engine's run over one journal, in a process of its own: `ENGINE JOURNAL OUT`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb

from purgatory.pipeline import spark_session
from purgatory.pipeline.console import Progress
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.run import Run
from purgatory.pipeline.spark.tables import Tables
from purgatory.pipeline.sql.duck import connected
from tests.benchmarks.pipeline.spark_memory import SparkMemory

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What a run took: seconds by the clock, seconds of CPU, and memory at its most."""

    outcomes_s: float
    waits_s: float
    cpu_s: float
    memory_bytes: int
    """Of the process that does the work: of Spark's JVM, or of Python with DuckDB in it."""
    operations: int
    driver_bytes: int = 0
    """Of Spark's driver in Python."""
    workers_bytes: int = 0
    """Of all Python workers together; 0 where none was started."""
    old_bytes: int = 0
    """Of the old generation in Spark's heap."""
    collecting_s: float = 0.0
    """By the clock, in which the JVM collected garbage."""
    spilled_bytes: int = 0
    """That did not fit into memory and were written to disk."""


def run_spark(journal: str, out: str) -> MeasuredRun:
    """Run both jobs on `local[2]` with a heap of 1 GB; starting Spark is not in the figures."""
    spark = spark_session("bench")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    # The JVM is where the work is done, and the memory is.
    process_id = gateway.proc.pid
    table, tables, on_progress = (
        OutcomeTable(spark, f"{out}/outcomes"),
        Tables(out),
        Progress(),
    )
    memory = SparkMemory(spark)
    cpu_s = _cpu_s(process_id) + _cpu_s(os.getpid())
    outcomes_s = _timed(lambda: table.update(journal, on_progress=on_progress))
    waits_s = _timed(lambda: Run(out, spark, on_progress=on_progress).write_waits())
    found = MeasuredRun(
        outcomes_s,
        waits_s,
        _cpu_s(process_id) + _cpu_s(os.getpid()) - cpu_s,
        _peak_bytes(process_id),
        sum(row["operations"] for row in tables.rows("waits", "by_kind")),
        driver_bytes=_peak_bytes(os.getpid()),
        workers_bytes=sum(_peak_bytes(worker) for worker in _below(process_id)),
        old_bytes=memory.old_bytes(),
        collecting_s=memory.collecting_s(),
        spilled_bytes=memory.spilled_bytes(),
    )
    spark.stop()
    return found


def run_duckdb(journal: str, out: str) -> MeasuredRun:
    """Run both jobs on DuckDB, on two threads with 1 GB."""
    connection = connected(memory="1GB", threads=2)
    run = Run(out, connection, journal=journal, on_progress=Progress())
    process_id = os.getpid()
    cpu_s = _cpu_s(process_id)
    outcomes_s, waits_s = _timed(run.update), _timed(run.write_waits)
    cpu_s = _cpu_s(process_id) - cpu_s
    operations = sum(row["operations"] for row in run.tables.rows("waits", "by_kind"))
    return MeasuredRun(outcomes_s, waits_s, cpu_s, _peak_bytes(process_id), operations)


def run_by_hand(journal: str, out: str) -> MeasuredRun:
    """Run the same questions on two threads, with 1 GB that it may use and a disk to spill to."""
    Path(out).mkdir(parents=True)
    connection = duckdb.connect(
        config={"threads": 2, "memory_limit": "1GB", "temp_directory": f"{out}/spilled"}
    )
    text = Path(__file__).with_name("duck.sql").read_text(encoding="utf-8")
    outcomes, waits = text.replace("{journal}", journal).replace("{out}", out).split("-- waits\n")
    cpu_s = _cpu_s(os.getpid())
    outcomes_s = _timed(lambda: connection.execute(outcomes))
    waits_s = _timed(lambda: connection.execute(waits))
    counted = connection.execute(
        f"SELECT sum(operations) FROM read_parquet('{out}/by_kind.parquet')"
    ).fetchone()
    assert counted is not None
    process_id = os.getpid()
    return MeasuredRun(
        outcomes_s, waits_s, _cpu_s(process_id) - cpu_s, _peak_bytes(process_id), int(counted[0])
    )


def _timed(work: Callable[[], object]) -> float:
    started_at = time.monotonic()
    work()
    return time.monotonic() - started_at


def _cpu_s(process_id: int) -> float:
    """Return the CPU of a process so far; from /proc, so on Linux only."""
    fields = _stat(process_id)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _stat(process_id: int) -> list[str]:
    """Return what stands after the process's name, which may have spaces in it."""
    return Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def _peak_bytes(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8").splitlines()
    # One that has ended, and whose end nobody has asked for, has none.
    found = (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return next(found, 0)


def _below(process_id: int) -> list[int]:
    """Return the processes that one started, and these: Python workers stay until it ends."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # It may have ended in between.
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
    found = [process_id]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found[1:]


ENGINES = {"spark": run_spark, "duckdb": run_duckdb, "by hand": run_by_hand}

if __name__ == "__main__":
    engine, journal, out = sys.argv[1:]
    sys.stdout.write(json.dumps(asdict(ENGINES[engine](journal, out))) + "\n")
