"""Spark: the rules translated to its SQL, and run by it in as many tasks as the data needs."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession, is_remote
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

from purgatory.pipeline.outcomes.event_summary import WorkerStart
from purgatory.pipeline.rollups.rollup_files import NO_KEY, Part
from purgatory.pipeline.schemas import EVENT_SCHEMA
from purgatory.pipeline.spark.folder import Folder
from purgatory.pipeline.spark.schemas import spark_schema
from purgatory.pipeline.spark.session import parallelism
from purgatory.pipeline.sql import outcomes as sql
from purgatory.pipeline.sql import rollups
from purgatory.pipeline.sql.runner import FEW_RECORDS, READ_AHEAD, Merge, Place, Runner

_NAMES = {
    "EPOCH_US": "UNIX_MICROS",
    "HASH": "XXHASH64",
    # Null, not an error, for what is not there.
    "MAP_EXTRACT_VALUE": "TRY_ELEMENT_AT",
}


@cache
def spark_sql(query: str, relations: tuple[str, ...] = ()) -> str:
    """Return a query, or an expression, of DuckDB's SQL in Spark's.

    `relations` are replaced by the places that `SparkSession.sql` has for DataFrames.
    """
    # Only on Spark: its import would take a tenth of a report on a new hour by DuckDB.
    import sqlglot
    from sqlglot import exp

    def translated(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Anonymous) and (name := _NAMES.get(node.name.upper())):
            node.set("this", name)
        if isinstance(node, exp.Table) and node.name in relations:
            node.set("this", exp.to_identifier(f"{{{node.name}}}", quoted=False))
        return node

    return sqlglot.parse_one(query, read="duckdb").transform(translated).sql(dialect="spark")


def frame(spark: SparkSession, query: str, **relations: Any) -> DataFrame:
    """Return the rows of a query of DuckDB's SQL over `relations`, which are DataFrames."""
    return spark.sql(spark_sql(query, tuple(relations)), **relations)


def frame_of(spark: SparkSession, schema: pa.Schema, *places: Place) -> DataFrame:
    """Return the columns of the Parquet files at paths in folders."""
    patterns = [folder.pattern(path) for folder, paths in places for path in paths]
    if not patterns:
        return spark.createDataFrame([], spark_schema(schema))
    # The path's date and hour are ignored: rows have their own times.
    reader = spark.read.schema(spark_schema(schema)).option("recursiveFileLookup", True)
    return reader.parquet(*patterns)


def operation_outcomes(
    events: DataFrame,
    *,
    as_of: datetime,
    grace_s: float,
    known: DataFrame | None = None,
    limit: datetime | None = None,
    tasks: int = 16,
    files_per_hour: int = 16,
) -> DataFrame:
    """Return one row for each operation (OUTCOME_SCHEMA) of `events` (EVENT_SCHEMA).

    Neither the order of `events` nor repeats change the outcomes: the earliest end wins, and
    `records` counts all records of an operation. An operation without an end is "lost" if its
    deadline plus `grace_s` seconds is before `as_of`, else "open". Unknown events are skipped, and
    those after `limit`.

    `known` are earlier outcomes, of the same operations or of others: the result is that of all
    events at once. `tasks` is the number of tasks, `files_per_hour` how many of them work on each
    hour; they change no row.
    """
    spark = events.sparkSession
    records = frame(spark, sql.records_of_events(limit), events=events)
    if known is not None:
        records = records.union(frame(spark, sql.records_of_outcomes(), known=known))
    gathered = _gathered(records, tasks, files_per_hour)
    # The rows are partitioned by task already: grouping by it avoids another shuffle.
    query = sql.outcomes("records", as_of, grace_s, by="number, task, operation_id")
    return frame(spark, query, records=gathered.withColumn("number", _number()))


def _gathered(records: DataFrame, tasks: int, files_per_hour: int) -> DataFrame:
    """Return `records` with those of an operation in one task, and those of an hour in few tasks.

    Partitioned by operation alone, every task would write a file for every hour. Tasks are numbered
    rather than hashed: a few hours hashed into a few tasks would leave cores idle.
    """
    if tasks == 1:
        return records.withColumn("task", F.lit(0)).coalesce(1)
    hour = F.expr(spark_sql(sql.HOUR))
    file = F.pmod(F.hash("operation_id"), F.lit(files_per_hour))
    task = F.pmod(hour * files_per_hour + file, F.lit(tasks)).cast("int")
    return records.withColumn("task", task).repartitionById(tasks, "task")


def _number() -> Column:
    """Return the number at the end of an operation's identifier, else a hash of it.

    The rows of a task are sorted, and sorting compares the first column: a number, unique to each
    operation of a start and growing with time, compares in a fraction of the time that identifiers
    take, and operations that began together are together in the file.
    """
    number = F.substring_index("operation_id", "-", -1).try_cast("long")
    return F.coalesce(number, F.xxhash64("operation_id"))


# Parts of the names of an hour, each of which one task ranks.
_SHARES = 16


def hour_rows(
    outcomes: DataFrame,
    *,
    starts: Mapping[str, WorkerStart],
    as_of: datetime,
    depth: int = 1,
) -> DataFrame:
    """Return the rollups of all hours of `waits_of`: `period`, `hour`, GROUPS and NUMBERS.

    All in one pass: one scan and three exchanges. Names are ranked in two stages, of which the
    first has several tasks for each hour, and leaves few names to the task of the second.
    """
    spark = outcomes.sparkSession
    last = [(name, datetime.fromisoformat(start.last_at)) for name, start in starts.items()]
    found = F.broadcast(spark.createDataFrame(last, "start_id string, last_at timestamp"))
    relations = {"outcomes": outcomes, rollups.STARTS: found}
    source = frame(spark, rollups.source("outcomes", as_of), **relations)
    # Exploded are parts and names only, and the other columns chosen after it: lists of wide rows
    # would be more code for each operation than Java compiles.
    items = source.select("*", F.inline(_listed(depth)).alias("part", "item"))
    rows = frame(spark, rollups.counted_items("items"), items=items)
    # What is kept of an hour is among what is kept of each part of its names.
    rows = rows.withColumn("share", F.pmod(F.hash("name"), F.lit(_SHARES)))
    for by in (("hour", "share"), ("hour",)):
        rows = rows.repartition(*by)
        rows = frame(spark, rollups.kept("counted_rows", ", ".join(by)), counted_rows=rows)
    period = F.date_format(F.timestamp_seconds(F.col("hour") * 3600), "yyyy-MM-dd'T'HH")
    return rows.withColumn("period", period)


def _listed(depth: int) -> Column:
    """Return the parts of an operation, each with its name."""

    def prefix_of(key: Column) -> Column:
        return _prefix(key, depth)

    of_names = {*rollups.OF_PREFIXES, Part.KEY}
    always = [part for part in Part if part not in {*of_names, *rollups.RARE}]
    keys = F.array_distinct("keys")
    prefixes = F.array_distinct(F.transform("keys", prefix_of))
    key = F.get("keys", F.lit(0))
    prefix = F.coalesce(prefix_of(key), F.lit(NO_KEY))
    # Most have one key: a list of one avoids lambdas, which Spark does not compile.
    none = [_named(part, prefix) for part in rollups.OF_PREFIXES]
    one = F.array(*none, _named(Part.KEY, key))
    several = F.concat(
        _each(Part.KEY, keys), *(_each(part, prefixes) for part in rollups.OF_PREFIXES)
    )
    by_key = F.when(F.size("keys") == 1, one).when(F.size("keys") > 1, several)
    nameless, rare = (
        F.array(*(_named(part, F.lit(None)) for part in parts)) for parts in (always, rollups.RARE)
    )
    is_rare = F.col("crashed").isNotNull() | F.col("is_failed") | F.col("earlier_us").isNotNull()
    by_part = F.when(is_rare, F.concat(nameless, rare)).otherwise(nameless)
    return F.concat(by_part, by_key.otherwise(F.array(*none)))


def _each(part: Part, names: Column) -> Column:
    return F.transform(names, lambda name: _named(part, name))


def _named(part: Part, name: Column) -> Column:
    return F.struct(F.lit(part.value).alias("part"), name.cast("string").alias("item"))


def _prefix(key: Column, depth: int) -> Column:
    if depth > 1:
        return F.regexp_extract(key, rollups.prefix_pattern(depth), 0)
    return F.substring_index(F.substring_index(key, ":", 1), "/", 1)


# Their names and sizes are sent to each task.
_FILES_AT_ONCE = 20_000
# That one task sorts: a million are about 200 MB, of which a part is in memory.
_RECORDS_A_TASK = 1_000_000
_MOST_TASKS = 2_000


def _calls(
    function: Callable[[Any], Any], items: Sequence[Any]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a task does: calls of `function` with the items at some places."""

    def called(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [pickle.dumps(function(items[place])) for place in batch["id"].to_pylist()]
            results = pa.array(found, pa.binary())
            yield pa.RecordBatch.from_arrays([batch["id"], results], ["id", "result"])

    return called


class SparkRunner(Runner):
    """Spark runs the rules; relations are DataFrames."""

    def __init__(self, spark: SparkSession) -> None:
        """Use a session."""
        self.spark = spark
        self.frames: dict[str, DataFrame] = {}
        # A server of Spark Connect need not have Python.
        master = "local" if is_remote() else str(spark.conf.get("spark.master", None))
        self.is_cluster = not re.match(r"local(\[|$)", master)

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Yield the results of a function that reads a file: many, on a cluster, of its tasks."""
        if not self.is_cluster or len(items) <= READ_AHEAD:
            yield from super().each(function, items)
            return
        for start in range(0, len(items), _FILES_AT_ONCE):
            some = items[start : start + _FILES_AT_ONCE]
            places = self.spark.range(0, len(some), numPartitions=-(-len(some) // READ_AHEAD))
            rows = places.mapInArrow(_calls(function, some), "id long, result binary").collect()
            for row in sorted(rows):
                yield pickle.loads(row["result"])  # noqa: S301 - by our own tasks

    def read(self, name: str, schema: pa.Schema, *places: Place, rows: int) -> None:
        """Let `name` be the columns of the Parquet files at paths in folders, about `rows`."""
        found = frame_of(self.spark, schema, *places)
        if schema is EVENT_SCHEMA:
            # Not `input_file_name`: a query that has it is not inlined, but shuffled.
            is_read = any(paths for _, paths in places)
            file = F.col("_metadata.file_path") if is_read else F.lit(None).cast("string")
            found = found.withColumn("file", file)
        # Without a shuffle.
        self.frames[name] = found.coalesce(1) if rows < FEW_RECORDS else found

    def define(self, name: str, query: str) -> None:
        """Let `name` be the rows of `query`."""
        self.frames[name] = self._frame(query)

    def rows(self, query: str) -> list[Row]:
        """Return the rows of `query`."""
        return self._frame(query).collect()

    def write(self, query: str, folder: Folder, path: str) -> None:
        """Write the rows of `query` to a file in the new folder at `path`."""
        self._frame(query).coalesce(1).write.mode("overwrite").parquet(folder.at(path))

    def write_outcomes(self, folder: Folder, path: str, merge: Merge) -> None:
        """Write the outcomes of a merge to the new folder at `path`, each hour to a folder."""
        tasks, files_per_hour = 1, 1
        if merge.records >= FEW_RECORDS:
            # A few for each core, and none too large to sort.
            most = max(4 * parallelism(self.spark), -(-merge.records // _RECORDS_A_TASK))
            files_per_hour = -(-most // merge.hours)
            tasks = min(_MOST_TASKS, merge.hours * files_per_hour)
        found = operation_outcomes(
            self.frames[sql.EVENTS],
            as_of=merge.as_of,
            grace_s=merge.grace_s,
            known=None if merge.known is None else self.frames[merge.known],
            limit=merge.limit,
            tasks=tasks,
            files_per_hour=files_per_hour,
        )
        placed = found.withColumn("hour", F.expr(spark_sql(sql.HOUR)))
        writer = placed.write.partitionBy("hour").option("compression", "zstd")
        writer.mode("overwrite").parquet(folder.at(path))

    def _frame(self, query: str) -> DataFrame:
        read = set(re.findall(r"\w+", query)) & self.frames.keys()
        return frame(self.spark, query, **{name: self.frames[name] for name in sorted(read)})
