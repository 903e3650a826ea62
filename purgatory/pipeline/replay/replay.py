"""Replay: a load through the real timer and the real purgatory, sharded over Spark."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, MapType, StructField, StructType, TimestampType

from purgatory.pipeline.outcomes.schema import JOB_KIND
from purgatory.pipeline.replay.load_batch import NEVER_NS, LoadBatch
from purgatory.pipeline.replay.replayed_operation import Fate
from purgatory.pipeline.replay.simulation import Simulation
from purgatory.pipeline.replay.synthetic_load import SyntheticLoad
from purgatory.pipeline.replay.time_slice import TimeSlice
from purgatory.pipeline.replay.what_if import Growth, WhatIf
from purgatory.timer.task import MAX_DELAY_MS

_COUNTS = (
    *("operations", "fired", "expired", "cancelled", "newly_expired", "unknown"),
    *("waiting", "peak", "buckets", "cascaded", "longest_run", "latest_us", "cpu_ns"),
)

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
    rows: list[dict[str, Any]] = []
    for piece in slices:
        rows.append(
            {
                "shard": shard,
                "at": piece.start_ns // 1_000,
                **{name: getattr(piece, name) for name in _COUNTS},
                "lateness": list(piece.lateness.items()),
            }
        )
        if len(rows) == _SLICES_A_BATCH:
            yield pa.RecordBatch.from_pylist(rows, schema=_ARROW_SCHEMA)
            rows = []
    if rows:
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
