"""Replay: a load through the real timer and the real purgatory, sharded over Spark."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import groupby, islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, MapType, StructField, StructType, TimestampType

from purgatory.pipeline.replay.load_driver import LoadDriver, ReplayedOperation
from purgatory.pipeline.replay.loads import (
    NEVER_NS,
    Fate,
    Growth,
    Integers,
    LoadBatch,
    SyntheticLoad,
    WhatIf,
)
from purgatory.pipeline.replay.summary import MOST, SUMMED, CpuTime, TimeSlice
from purgatory.pipeline.schemas import JOB_KIND
from purgatory.timer.clock import NS_PER_MS
from purgatory.timer.task import MAX_DELAY_MS

_NOTHING: Integers = np.empty(0, np.int64)
_EMPTY = LoadBatch(_NOTHING, _NOTHING, _NOTHING, _NOTHING, [], [])
# Later than every end.
_ALL_OF_IT = NEVER_NS - 1


class Simulation:
    """Feeds a `LoadDriver` with batches, and carries waiting operations from batch to batch.

    Nothing depends on real time, so the same batches give the same figures, except for the CPU
    time. One batch and the waiting operations are in memory.
    """

    def __init__(self, *, tick_ms: int = 1, wheel_size: int = 256, slice_ms: int = 60_000) -> None:
        """Begin with an empty wheel; count for each `slice_ms` of simulated time."""
        self._slice_ns = slice_ms * NS_PER_MS
        self._geometry = (tick_ms, wheel_size)
        # The operations of earlier batches with a known end, and these ends.
        self._operations: list[ReplayedOperation | None] = []
        self._fired_keys: list[str | None] = []
        self._end_ns = _NOTHING
        self._cpu_time = CpuTime()

    def run(self, batches: Iterable[LoadBatch]) -> Iterator[TimeSlice]:
        """Replay `batches`, in order of time, and continue until no operation waits.

        Yields the slices of time in order; slices without an event are left out.
        """
        driver: LoadDriver | None = None
        for batch in self._grown(batches):
            if driver is None:
                first_ns = int(batch.arrival_ns[0])
                start_ns = first_ns - first_ns % self._slice_ns
                driver = LoadDriver(start_ns, self._slice_ns, *self._geometry, self._cpu_time)
            with self._at_work():
                self._play(driver, batch)
            yield from driver.taken()
        if driver is not None:
            with self._at_work():
                self._play_out(driver)
            yield from driver.taken()

    def _grown(self, batches: Iterable[LoadBatch]) -> Iterator[LoadBatch]:
        """Merge batches until they have at least as many operations as are carried over.

        So the cost of carrying an operation does not grow with the number that wait.
        """
        gathered: list[LoadBatch] = []
        count = 0
        for batch in batches:
            gathered.append(batch)
            count += len(batch)
            if count and count >= len(self._operations):
                yield LoadBatch.concatenated(gathered)
                gathered, count = [], 0
        if count:
            yield LoadBatch.concatenated(gathered)

    def _play(self, driver: LoadDriver, batch: LoadBatch) -> None:
        until_ns = int(batch.arrival_ns[-1])
        # No operation ends before it arrives, whatever was recorded.
        ends = np.maximum(batch.end_ns, batch.arrival_ns)
        self._end_ns = np.concatenate([self._end_ns, ends])
        self._operations += [None] * len(batch)
        self._fired_keys += batch.fired_keys
        self._drive(driver, batch, until_ns)
        self._carry(until_ns)

    def _play_out(self, driver: LoadDriver) -> None:
        """Let operations with an end reach it, and the others expire."""
        self._drive(driver, _EMPTY, _ALL_OF_IT)
        self._operations.clear()
        driver.play_out()

    def _drive(self, driver: LoadDriver, batch: LoadBatch, until_ns: int) -> None:
        """Let the operations of `batch` arrive, and those with an end up to `until_ns` end."""
        ends = np.flatnonzero(self._end_ns <= until_ns)
        ends = ends[np.argsort(self._end_ns[ends], kind="stable")]
        driver.play(batch, self._operations, self._fired_keys, self._end_ns.data, ends.data)

    def _carry(self, after_ns: int) -> None:
        """Keep the operations whose end is still to come; the timer has the others."""
        ahead = np.flatnonzero((self._end_ns > after_ns) & (self._end_ns < NEVER_NS))
        found = ((number, self._operations[number]) for number in ahead.tolist())
        carried = [
            (number, operation)
            for number, operation in found
            if operation is not None and not operation.is_completed
        ]
        numbers = [number for number, _ in carried]
        self._operations = [operation for _, operation in carried]
        self._fired_keys = [self._fired_keys[number] for number in numbers]
        self._end_ns = self._end_ns[numbers]

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Count the CPU time, with the garbage collector off.

        There are no cycles, and searching for them takes longer than everything else.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        self._cpu_time.resume()
        try:
            yield
        finally:
            self._cpu_time.pause()
            if was_enabled:
                gc.enable()


_COUNTS = (*SUMMED[:-1], *MOST, "cpu_ns")

REPLAY_SCHEMA = StructType(
    [
        StructField("shard", IntegerType(), nullable=False),
        StructField("at", TimestampType(), nullable=False),
        *(StructField(name, LongType(), nullable=False) for name in _COUNTS),
        StructField("lateness", MapType(IntegerType(), LongType(), False), nullable=False),
    ]
)
"""One row for each shard and slice of simulated time: docs/pipeline/replay.md has the columns.

`TimeSlice` has the same names.
"""

_ARROW_SCHEMA = to_arrow_schema(REPLAY_SCHEMA, timezone="UTC")

# The offset between two copies of an operation, in minutes: irrational, so that none coincide.
_GOLDEN = 0.6180339887498949
_MINUTE_NS = 60_000_000_000
_SLICES_A_BATCH = 1_000


def replay_outcomes(
    outcomes: DataFrame, what_if: WhatIf | None = None, *, shards: int = 16, slice_s: int = 60
) -> DataFrame:
    """Return the replay of `outcomes` (OUTCOME_SCHEMA): REPLAY_SCHEMA.

    Delayed jobs are left out, as they wait in their store. An operation without keys gets a key of
    its own, which nothing fires.

    Each operation goes to the shard of its first key. A shard is a worker of its own: its timer and
    its purgatory get only the operations of its keys, in order of time. The other keys of an
    operation are watched in that shard too, so that it ends when it did; but a fire of one of them
    tries only the operations of this shard.

    An operation that fired does so again at the same time after its arrival, through the same key,
    unless it expires before; one that was cancelled or drained, likewise. How an operation that
    expired, was outdated or lost, or is open would have ended later is unknown: it expires, and
    counts as `unknown`.
    """
    if shards < 1 or slice_s < 1:
        raise ValueError(f"shards is {shards} and slice_s {slice_s}: give 1 or more of each")
    what_if = what_if or WhatIf()
    shard = F.pmod(F.xxhash64(_first_key()), F.lit(shards)).cast("int")
    operations = _copies(_parked(outcomes), what_if).select(
        shard.alias("shard"),
        *_as_load(what_if),
        # For an order that does not depend on the input's.
        "operation_id",
    )
    ordered = operations.repartitionById(shards, "shard").sortWithinPartitions(
        "shard", "arrival_ns", "operation_id"
    )
    return ordered.drop("operation_id").mapInArrow(
        _replaying(what_if, slice_s),
        REPLAY_SCHEMA,
    )


def replay_synthetic(
    spark: SparkSession, load: SyntheticLoad, what_if: WhatIf | None = None, *, slice_s: int = 60
) -> DataFrame:
    """Return the replay of a synthetic load: REPLAY_SCHEMA.

    Each shard of the load is a task that draws and replays it; nothing is read or shuffled. Times
    count from 1970.
    """
    if slice_s < 1:
        raise ValueError(f"slice_s is {slice_s}: give 1 or more")
    what_if = what_if or WhatIf()
    changed = load.changed(what_if)

    def play(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _freeze_imports()
        for batch in batches:
            for shard in batch.column(0).to_pylist():
                drawn = changed.batches(shard, timeout=what_if.timeout)
                yield from _record_batches(shard, simulation(what_if, slice_s).run(drawn))

    shards = spark.range(0, load.shards, 1, numPartitions=load.shards)
    return shards.mapInArrow(play, REPLAY_SCHEMA)


def simulation(what_if: WhatIf, slice_s: int = 60) -> Simulation:
    """Return an empty simulation with the wheel of `what_if`."""
    return Simulation(
        tick_ms=what_if.tick_ms, wheel_size=what_if.wheel_size, slice_ms=slice_s * 1_000
    )


def load_batch(rows: pa.RecordBatch) -> LoadBatch:
    """Return the operations of `rows`, which are sorted as in `replay`."""
    keys = _strings(rows.column("keys").flatten())
    edges = rows.column("keys").offsets.to_numpy()
    # The offsets of a sliced batch do not start at 0, its flattened keys do.
    bounds = (edges - edges[0]).tolist()
    return LoadBatch(
        arrival_ns=rows.column("arrival_ns").to_numpy(),
        delay_ms=rows.column("delay_ms").to_numpy(),
        end_ns=rows.column("end_ns").to_numpy(),
        fate=rows.column("fate").to_numpy().astype(np.int64),
        keys=[tuple(keys[low:high]) for low, high in pairwise(bounds)],
        fired_keys=rows.column("completed_by").to_pylist(),
    )


def _strings(values: pa.Array) -> list[str]:
    # One object for each different string: they compare by identity, and take less memory.
    encoded = values.dictionary_encode()
    different = encoded.dictionary.to_pylist()
    return [different[number] for number in encoded.indices.to_pylist()]


def _replaying(
    what_if: WhatIf, slice_s: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def play(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _freeze_imports()
        # A task may have several consecutive shards.
        for shard, rows in _by_shard(batches):
            yield from _record_batches(shard, simulation(what_if, slice_s).run(rows))

    return play


@cache
def _freeze_imports() -> None:
    """Exclude the imports of a worker process from garbage collection, once."""
    # Spark collects after each task, which would take 50 ms longer every time.
    gc.freeze()


def _by_shard(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[int, Iterator[LoadBatch]]]:
    """Return the batches of each shard, from batches that are sorted by shard."""
    pieces = (piece for batch in batches for piece in _pieces(batch))
    for shard, group in groupby(pieces, key=lambda piece: piece[0]):
        yield shard, (load_batch(rows) for _, rows in group)


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    shards = batch.column("shard").to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(shards)]
    for low, high in pairwise(edges):
        if low < high:
            yield int(shards[low]), batch.slice(low, high - low)


def _record_batches(shard: int, slices: Iterable[TimeSlice]) -> Iterator[pa.RecordBatch]:
    left = iter(slices)
    while pieces := list(islice(left, _SLICES_A_BATCH)):
        rows: list[dict[str, Any]] = [
            {
                "shard": shard,
                "at": piece.start_ns // 1_000,
                **{name: getattr(piece, name) for name in _COUNTS},
                "lateness": list(piece.lateness.items()),
            }
            for piece in pieces
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_ARROW_SCHEMA)


def _parked(outcomes: DataFrame) -> DataFrame:
    """Return the operations that were parked, each with a key."""
    own = F.array(F.concat(F.lit("(no key) "), "operation_id"))
    keys = F.when(F.size("keys") > 0, F.col("keys")).otherwise(own)
    return outcomes.where(~F.col("kind").startswith(JOB_KIND)).withColumn("keys", keys)


def _first_key() -> Column:
    return F.element_at("keys", 1)


def _copies(outcomes: DataFrame, what_if: WhatIf) -> DataFrame:
    """Return the copies of each operation that the traffic asks for, with the number `copy`."""
    whole = int(what_if.traffic)
    # The same for all operations of a key, so that they can still end by one fire.
    place = F.pmod(F.xxhash64(_first_key(), F.lit("copies")), F.lit(1_000_000)) / 1_000_000
    copies = F.lit(whole) + (place < what_if.traffic - whole).cast("int")
    numbers = F.sequence(F.lit(0), copies - 1)
    copied = outcomes.withColumn("copies", copies).where("copies > 0")
    copied = copied.withColumn("copy", F.explode(numbers))
    if what_if.growth is Growth.BUSIER:
        return copied

    def own(key: Column) -> Column:
        return F.when(F.col("copy") == 0, key).otherwise(F.concat(key, F.lit("#"), F.col("copy")))

    return copied.withColumns(
        {"keys": F.transform("keys", own), "completed_by": own(F.col("completed_by"))}
    )


def _as_load(what_if: WhatIf) -> list[Column]:
    shift_ns = (F.col("copy") * _GOLDEN % 1 * _MINUTE_NS).cast("long")
    watched_ns = F.unix_micros("watched_at") * 1_000
    arrival_ns = watched_ns + shift_ns
    # Rounded down, since the deadline was rounded up to a tick.
    delay_ms = F.floor(F.col("timeout_us") * what_if.timeout / 1_000).cast("long")
    delay_ms = F.least(F.greatest(delay_ms, F.lit(0)), F.lit(MAX_DELAY_MS))
    fate = (
        F.when(F.col("outcome").isin("cancelled", "drained"), int(Fate.CANCELLED))
        .when(F.col("outcome") != "fired", _without_end(delay_ms))
        .when(F.col("completed_by").isNull(), int(Fate.FORCED))
        .otherwise(int(Fate.FIRED))
    )
    has_end = F.col("outcome").isin("cancelled", "drained", "fired")
    end_ns = F.when(has_end, arrival_ns + F.col("wait_us") * 1_000).otherwise(F.lit(NEVER_NS))
    return [
        arrival_ns.alias("arrival_ns"),
        delay_ms.alias("delay_ms"),
        end_ns.alias("end_ns"),
        fate.alias("fate"),
        F.col("keys"),
        F.col("completed_by"),
    ]


def _without_end(delay_ms: Column) -> Column:
    # An expired operation was watched up to its deadline; others may have fired any time.
    is_known = (F.col("outcome") == "expired") & (delay_ms * 1_000 <= F.col("timeout_us"))
    return F.when(is_known, int(Fate.NONE)).otherwise(int(Fate.UNKNOWN))


# Invariant: every column of counts is an attribute of TimeSlice.
assert set(_COUNTS) <= set(TimeSlice.__slots__)
