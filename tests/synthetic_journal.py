"""A journal of operations that never were, of any size, with everything known about them.

    journal = SyntheticJournal(operations=1_000_000, duplicate_share=0.01)
    truth = journal.write(tmp_path)     # several million rows a second
    journal.deliver_late()              # the files that come afterwards
    inject(tmp_path, "truncated")       # a broken file more: the truth stays as it is

Waits, cancellations, arrivals and restarts are independent of one another, so that an estimator of
survival has to find the distributions that the waits were drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from purgatory.journal.schema import EVENT_SCHEMA, EVENTS, SAMPLE_KEY, VERSION_KEY, WRITER_OPTIONS

Integers = NDArray[np.int64]
Fault = Literal[
    "truncated", "empty", "not-parquet", "wrong-schema", "unknown-version", "half-written"
]

START = datetime(2026, 11, 20, 6, tzinfo=UTC)
VERSIONS = ("1.1", "1.2")
"""Of the even and the odd workers, if operations have labels."""
_US = 1_000_000
_HOUR_US = 3600 * _US
# Later than anything that happens.
_NEVER = np.iinfo(np.int64).max // 4
_WATCHED, _FIRED, _EXPIRED, _CANCELLED, _DRAINED, _OUTDATED, _LOST = range(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How the operations of one kind behave. Times are in seconds."""

    name: str
    share: float
    """Of all operations; the shares of all kinds make 1."""
    timeout: float
    median: float
    """Of the wait that would be, were there no timeout, no cancelling and no restart."""
    sigma: float | None = None
    """Of a lognormal wait; None is an exponential one."""
    cancelled_after: float | None = None
    """The mean of an exponential time after which somebody cancels; None is never."""
    keys: int = 1_000
    zipf: float = 1.1
    """The k-th key is used in proportion to 1 / k ** zipf; 0 is no skew."""
    key_prefix: str = "order:"
    second_key: str | None = None
    """A second key that every operation of this kind watches as well."""

    def survival(self, seconds: float) -> float:
        """Return the share of waits that are longer, were there nothing that ends them."""
        if self.sigma is None:
            return math.exp2(-seconds / self.median)
        if seconds <= 0:
            return 1.0
        return 1 - NormalDist(math.log(self.median), self.sigma).cdf(math.log(seconds))

    def quantile(self, share: float) -> float:
        """Return the seconds within which `share` of the waits end, were there nothing else."""
        if self.sigma is None:
            return -self.median * math.log2(1 - share)
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(share))


KINDS = (
    Kind(name="park", share=0.55, timeout=25, median=1.2, sigma=1.0, keys=50_000),
    Kind(name="watch", share=0.3, timeout=25, median=20, cancelled_after=120, second_key="news"),
    Kind(name="fetch", share=0.1, timeout=0.5, median=0.3, zipf=0, key_prefix="partition:"),
    Kind(name="job:cancel-order", share=0.05, timeout=900, median=300, sigma=0.7, zipf=0.5),
)


@dataclass(slots=True)
class KindTruth:
    """What happened to the operations of one kind; a reader that ignores repeats finds this."""

    operations: int = 0
    """All that left at least one row."""
    fired: int = 0
    expired: int = 0
    cancelled: int = 0
    drained: int = 0
    outdated: int = 0
    unfinished: int = 0
    """Watched, and then the worker crashed: a row "watched" and no other."""
    waits_us: list[Integers] = field(default_factory=list, repr=False)
    """Of all that ended."""
    lateness_us: list[Integers] = field(default_factory=list, repr=False)
    key_counts: dict[str, int] = field(default_factory=dict, repr=False)
    """Operations by key, the second key left out."""
    by_label: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False)
    """Operations, and those that expired, by label, such as "tenant=t1"."""


@dataclass(slots=True)
class Truth:
    """What a reader has to find. Repeats are in `rows` and in nothing else."""

    kinds: dict[str, KindTruth] = field(default_factory=dict)
    rows: int = 0
    """In all good files, those that come late too."""
    repeated_rows: int = 0
    late_rows: int = 0
    events: dict[str, int] = field(default_factory=dict)
    """Different rows by event."""
    hours: dict[str, int] = field(default_factory=dict)
    """Different rows by partition, such as "date=2026-11-20/hour=07"."""
    files: int = 0

    @property
    def operations(self) -> int:
        """All that left at least one row."""
        return sum(kind.operations for kind in self.kinds.values())

    def add(self, part: Truth) -> None:
        """Add what is true of other rows."""
        self.rows += part.rows
        self.repeated_rows += part.repeated_rows
        self.late_rows += part.late_rows
        self.files += part.files
        for counts, more in ((self.events, part.events), (self.hours, part.hours)):
            for name, count in more.items():
                counts[name] = counts.get(name, 0) + count
        for name, kind in part.kinds.items():
            _merge_kind(self.kinds.setdefault(name, KindTruth()), kind)


@dataclass(kw_only=True)
class SyntheticJournal:
    """Writes a journal. The same arguments write the same one."""

    operations: int = 100_000
    kinds: tuple[Kind, ...] = KINDS
    start: datetime = START
    hours: float = 3.0
    """Over which operations begin, evenly; some end later."""
    workers: int = 4
    seed: int = 1
    drains: tuple[float, ...] = ()
    """After how many hours all workers restart, having drained whoever waits."""
    crashes: tuple[float, ...] = ()
    """After how many hours all workers die: what waits is never ended."""
    crash_loses_seconds: float = 0.0
    """What of the last seconds before a crash was not yet in a complete file."""
    dropped_share: float = 0.0
    """Operations whose row "watched" was dropped, since the disk was slow; the end is there."""
    duplicate_share: float = 0.0
    """Rows that are there twice, in another file."""
    late_share: float = 0.0
    """Rows in files of their own, which come only with `deliver_late()`."""
    shuffled: bool = False
    """Rows stand in their files in any order, rather than by time."""
    tenants: int = 0
    """Labels of operations: one of so many tenants, and the version of the worker; 0 is none."""
    rows_per_file: int = 1_000_000
    _late: list[tuple[Path, pa.Table]] = field(default_factory=list, init=False, repr=False)

    def write(self, directory: Path) -> Truth:
        """Write all but the late files into `directory`, and return what is true of all."""
        truth = Truth()
        sizes = self._chunk_sizes()
        first_ids = [0, *np.cumsum(sizes).tolist()]
        # Two chunks at once: the encoding of Parquet holds no lock.
        with ThreadPoolExecutor(2) as pool:
            tasks = [
                pool.submit(_Chunk(self, index, size, first_ids[index]).write, directory)
                for index, size in enumerate(sizes)
            ]
            for task in tasks:
                part, late = task.result()
                truth.add(part)
                self._late += late
        return truth

    def deliver_late(self) -> list[Path]:
        """Write the files that come late into their old partitions; return them."""
        for path, table in self._late:
            _write(path, table)
        paths = [path for path, _ in self._late]
        self._late.clear()
        return paths

    def _chunk_sizes(self) -> list[int]:
        # Two rows an operation.
        most = max(1, self.rows_per_file // 2)
        count = max(1, -(-self.operations // most))
        return [len(part) for part in np.array_split(np.empty(self.operations, np.int8), count)]


class _Chunk:
    """The operations that begin in one span of time, drawn and written in one go."""

    def __init__(self, journal: SyntheticJournal, index: int, size: int, first_id: int) -> None:
        self.journal = journal
        self.index = index
        self.size = size
        self.first_id = first_id
        self.random = np.random.default_rng([journal.seed, index])
        self.truth = Truth()
        self.late: list[tuple[Path, pa.Table]] = []

    def write(self, directory: Path) -> tuple[Truth, list[tuple[Path, pa.Table]]]:
        self._draw()
        rows, is_end = self._rows()
        self._note_truth(rows, is_end)
        table = self._table(rows, is_end)
        at = np.where(is_end, self.ended_us[rows], self.watched_us[rows])
        hours = at // _HOUR_US
        edges = [0, *(np.flatnonzero(np.diff(hours)) + 1).tolist(), len(rows)]
        for low, high in pairwise(edges):
            if low < high:
                self._write_hour(directory, int(hours[low]), table.slice(low, high - low))
        return self.truth, self.late

    def _draw(self) -> None:
        journal, random, size = self.journal, self.random, self.size
        start_us = int(journal.start.timestamp()) * _US
        span_us = journal.hours * _HOUR_US * size / max(1, journal.operations)
        begin_us = start_us + journal.hours * _HOUR_US * self.first_id / max(1, journal.operations)
        self.watched_us = np.sort((begin_us + random.random(size) * span_us).astype(np.int64))
        shares = np.cumsum([kind.share for kind in journal.kinds])
        self.kind = np.searchsorted(shares / shares[-1], random.random(size), side="right")
        self.worker = random.integers(0, journal.workers, size)
        self.key = np.empty(size, np.int64)
        wait_us = np.empty(size, np.int64)
        cancel_us = np.full(size, _NEVER, np.int64)
        timeout_us = np.empty(size, np.int64)
        for number, kind in enumerate(journal.kinds):
            which = np.flatnonzero(self.kind == number)
            wait_us[which] = _waits(random, kind, len(which))
            timeout_us[which] = round(kind.timeout * _US)
            self.key[which] = _zipf(random, kind, len(which))
            if kind.cancelled_after is not None:
                mean_us = kind.cancelled_after * _US
                cancel_us[which] = random.exponential(mean_us, len(which)).astype(np.int64)
        self._settle(wait_us, cancel_us, timeout_us)

    def _settle(self, wait_us: Integers, cancel_us: Integers, timeout_us: Integers) -> None:
        """Let the first of what may end an operation end it."""
        journal, watched_us = self.journal, self.watched_us
        # A tick is a millisecond: deadlines are rounded up to one.
        self.deadline_us = -(-(watched_us + timeout_us) // 1000) * 1000
        late_us = self.random.random(self.size) * 300 + self.random.exponential(400, self.size)
        self.lateness_us = late_us.astype(np.int64)
        start_us = int(journal.start.timestamp()) * _US
        stops = [(hours, _DRAINED) for hours in journal.drains]
        stops += [(hours, _LOST) for hours in journal.crashes]
        stops.sort()
        stop_us = np.array([start_us + int(hours * _HOUR_US) for hours, _ in stops] + [_NEVER])
        stop_outcome = np.array([outcome for _, outcome in stops] + [_LOST])
        self.run = np.searchsorted(stop_us, watched_us, side="right")
        ends_us = np.stack(
            [
                watched_us + wait_us,
                self.deadline_us + self.lateness_us,
                watched_us + cancel_us,
                stop_us[self.run],
            ]
        )
        # What fires at or after the deadline has expired.
        ends_us[0][ends_us[0] >= self.deadline_us] = _NEVER * 2
        first = ends_us.argmin(axis=0)
        self.ended_us = ends_us[first, np.arange(self.size)]
        self.outcome = np.array([_FIRED, _EXPIRED, _CANCELLED, _LOST])[first]
        self.outcome[first == 3] = stop_outcome[self.run[first == 3]]
        crash_us = np.where(stop_outcome == _LOST, stop_us, _NEVER * 2)[self.run]
        self.unsaved_us = crash_us - int(journal.crash_loses_seconds * _US)

    def _rows(self) -> tuple[Integers, NDArray[np.bool_]]:
        """Return the operation of each row and whether the row is of its end, by time."""
        everything = np.arange(self.size)
        is_watched = self.watched_us < self.unsaved_us
        if self.journal.dropped_share:
            is_dropped = self.random.random(self.size) < self.journal.dropped_share
            # Of one that never ends there would be nothing at all.
            is_watched &= ~(is_dropped & (self.outcome != _LOST))
        has_end = (self.outcome != _LOST) & (self.ended_us < self.unsaved_us)
        rows = np.concatenate([everything[is_watched], everything[has_end]])
        is_end = np.zeros(len(rows), np.bool_)
        is_end[int(is_watched.sum()) :] = True
        at = np.where(is_end, self.ended_us[rows], self.watched_us[rows])
        order = np.argsort(at, kind="stable")
        return rows[order], is_end[order]

    def _note_truth(self, rows: Integers, is_end: NDArray[np.bool_]) -> None:
        seen = np.zeros(self.size, np.bool_)
        seen[rows] = True
        outcome = np.full(self.size, _LOST)
        ended = rows[is_end]
        outcome[ended] = self.outcome[ended]
        wait_us = self.ended_us - self.watched_us
        for number, kind in enumerate(self.journal.kinds):
            mine = (self.kind == number) & seen
            counts = np.bincount(outcome[mine], minlength=_LOST + 1)
            keys, uses = np.unique(self.key[mine], return_counts=True)
            self.truth.kinds[kind.name] = KindTruth(
                operations=int(mine.sum()),
                fired=int(counts[_FIRED]),
                expired=int(counts[_EXPIRED]),
                cancelled=int(counts[_CANCELLED]),
                drained=int(counts[_DRAINED]),
                outdated=int(counts[_OUTDATED]),
                unfinished=int(counts[_LOST]),
                waits_us=[wait_us[mine & (outcome != _LOST)]],
                lateness_us=[self.lateness_us[mine & (outcome == _EXPIRED)]],
                by_label=self._by_label(mine, outcome),
                key_counts={
                    f"{kind.key_prefix}{key}": int(count)
                    for key, count in zip(keys.tolist(), uses.tolist(), strict=True)
                },
            )
        events = np.where(is_end, self.outcome[rows], _WATCHED)
        counts = np.bincount(events, minlength=len(EVENTS))
        self.truth.events = dict(zip(EVENTS, counts.tolist(), strict=True))

    def _by_label(self, mine: NDArray[np.bool_], outcome: Integers) -> dict[str, tuple[int, int]]:
        if not self.journal.tenants:
            return {}
        found = {}
        names = {"tenant": [f"t{number}" for number in range(self.journal.tenants)]}
        names["version"] = list(VERSIONS)
        of = {"tenant": self._tenant(), "version": self.worker % len(VERSIONS)}
        for label, values in names.items():
            for number, value in enumerate(values):
                chosen = mine & (of[label] == number)
                expired = chosen & (outcome == _EXPIRED)
                found[f"{label}={value}"] = int(chosen.sum()), int(expired.sum())
        return found

    def _table(self, rows: Integers, is_end: NDArray[np.bool_]) -> pa.Table:
        outcome = np.where(is_end, self.outcome[rows], _WATCHED)
        ended_us = self.ended_us[rows]
        kinds = self.journal.kinds
        jobs = [kind.name.removeprefix("job:") for kind in kinds if kind.name.startswith("job:")]
        job_of = np.cumsum([kind.name.startswith("job:") for kind in kinds]) - 1
        is_job = np.array([kind.name.startswith("job:") for kind in kinds])[self.kind[rows]]
        identifiers = self._identifiers()
        keys = self._key_lists().take(pa.array(rows))
        nothing = pa.nulls(len(rows))
        columns = {
            "operation_id": identifiers.take(pa.array(rows)),
            "event": _names(outcome, EVENTS),
            "seq": self._seq(rows),
            "kind": _names(self.kind[rows], [kind.name for kind in kinds]),
            "keys": keys,
            "worker": _names(self.worker[rows], self._workers()),
            "at": np.where(is_end, ended_us, self.watched_us[rows]),
            "watched_at": self.watched_us[rows],
            "deadline": self.deadline_us[rows],
            "completed_at": pa.array(ended_us, mask=~is_end),
            "lateness_us": pa.array(self.lateness_us[rows], mask=outcome != _EXPIRED),
            "completed_by": pc.if_else(
                pa.array(outcome == _FIRED), pc.list_element(keys, 0), pa.scalar(None, pa.string())
            ),
            "job_id": identifiers.take(pa.array(rows, mask=~is_job)),
            "handler": _names(job_of[self.kind[rows]], jobs or [""], mask=~is_job),
            "attempt": pa.array(np.ones(len(rows), np.int32), mask=~is_job),
            "state": _names(is_end.astype(np.int64), ["waiting", "done"], mask=~is_job),
            "error": nothing,
            "labels": self._labels(rows),
        }
        arrays = [
            pa.array(columns[column.name]).cast(column.type)  # an array stays as it is
            for column in EVENT_SCHEMA
        ]
        return pa.Table.from_arrays(arrays, schema=EVENT_SCHEMA)

    def _labels(self, rows: Integers) -> pa.Array:
        """Return the version of each worker, and the tenant of each operation."""
        number = self.journal.tenants
        if not number:
            return pa.nulls(len(rows))
        pairs = [
            [("version", version), ("tenant", f"t{tenant}")]
            for version in VERSIONS
            for tenant in range(number)
        ]
        version = self.worker % len(VERSIONS)
        different = pa.array(pairs, EVENT_SCHEMA.field("labels").type)
        return different.take(pa.array((version * number + self._tenant())[rows]))

    def _tenant(self) -> Integers:
        return (self.key + self.worker) % self.journal.tenants

    def _workers(self) -> list[str]:
        return [f"worker-{number}" for number in range(self.journal.workers)]

    def _identifiers(self) -> pa.Array:
        """One for each operation: the start of its worker, and a number."""
        start = self.run * self.journal.workers + self.worker
        # Chunks do not know how many rows others have: each has starts of its own.
        prefix = f"{self.journal.seed:04x}{self.index:04x}"
        starts = [f"{prefix}{number:04x}" for number in range(int(start.max()) + 1)]
        numbers = pa.array(np.arange(self.first_id, self.first_id + self.size)).cast(pa.string())
        return pc.binary_join_element_wise(pa.array(starts).take(pa.array(start)), numbers, "-")

    def _key_lists(self) -> pa.Array:
        kinds = self.journal.kinds
        first = np.cumsum([0, *(kind.keys for kind in kinds)])
        pool = [f"{kind.key_prefix}{number}" for kind in kinds for number in range(kind.keys)]
        seconds = [kind.second_key for kind in kinds]
        pool += [key or "" for key in seconds]
        has_second = np.array([key is not None for key in seconds])[self.kind]
        offsets = np.zeros(self.size + 1, np.int32)
        np.cumsum(1 + has_second, out=offsets[1:])
        values = np.empty(int(offsets[-1]), np.int64)
        values[offsets[:-1]] = first[self.kind] + self.key
        values[offsets[:-1][has_second] + 1] = first[-1] + self.kind[has_second]
        strings = pa.array(pool).take(pa.array(values))
        return pa.ListArray.from_arrays(pa.array(offsets), strings)

    def _seq(self, rows: Integers) -> Integers:
        """Number the rows of each start of a worker."""
        start = (self.run * self.journal.workers + self.worker)[rows]
        order = np.argsort(start, kind="stable")
        sorted_start = start[order]
        first = np.searchsorted(sorted_start, sorted_start, side="left")
        seq = np.empty(len(rows), np.int64)
        seq[order] = np.arange(len(rows)) - first + 1
        return seq

    def _write_hour(self, directory: Path, hour: int, table: pa.Table) -> None:
        moment = datetime.fromtimestamp(hour * 3600, UTC)
        partition = f"date={moment:%Y-%m-%d}/hour={moment:%H}"
        folder = directory / partition
        self.truth.hours[partition] = self.truth.hours.get(partition, 0) + table.num_rows
        self.truth.rows += table.num_rows
        if self.journal.shuffled:
            table = table.take(pa.array(self.random.permutation(table.num_rows)))
        duplicates = self._chosen(table, self.journal.duplicate_share)
        self.truth.repeated_rows += duplicates.num_rows
        self.truth.rows += duplicates.num_rows
        name = f"{self.index:06d}-{hour % 24:02d}"
        if self.journal.late_share:
            is_late = pa.array(self.random.random(table.num_rows) < self.journal.late_share)
            late = table.filter(is_late)
            table = table.filter(pc.invert(is_late))
            if late.num_rows:
                self.late.append((folder / f"{name}-late.parquet", late))
                self.truth.late_rows += late.num_rows
        for suffix, part in (("", table), ("-again", duplicates)):
            if part.num_rows:
                _write(folder / f"{name}{suffix}.parquet", part)
                self.truth.files += 1

    def _chosen(self, table: pa.Table, share: float) -> pa.Table:
        if not share:
            return table.slice(0, 0)
        return table.filter(pa.array(self.random.random(table.num_rows) < share))


def put(path: Path, *rows: Mapping[str, Any], sample: bytes | None = None) -> None:
    """Write rows as a file of a journal, with null for what they do not say.

    Times may be microseconds since 1970, which a datetime need not know.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        field.name: pa.array(
            [row.get(field.name) for row in rows],
            field.type if pa.types.is_map(field.type) else None,
        )
        for field in EVENT_SCHEMA
    }
    table = pa.table(columns).cast(EVENT_SCHEMA)
    if sample is not None:
        table = table.replace_schema_metadata({**EVENT_SCHEMA.metadata, SAMPLE_KEY: sample})
    pq.write_table(table, path)


def inject(directory: Path, fault: Fault) -> Path:
    """Put a broken file beside the first good one; return it. What is true stays as it is."""
    good = next(_good_files(directory))
    path = good.with_name(f"zz-{fault}.parquet")
    match fault:
        case "truncated":
            path.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
        case "empty":
            path.write_bytes(b"")
        case "not-parquet":
            path.write_bytes(b"This is not Parquet.\n" * 100)
        case "wrong-schema":
            pq.write_table(pa.table({"name": ["a"], "at": [1]}), path)
        case "unknown-version":
            table = pq.read_table(good, partitioning=None).slice(0, 10)
            pq.write_table(table.replace_schema_metadata({VERSION_KEY: b"999"}), path)
        case "half-written":
            # As the journal leaves one when it is killed: hidden, and without its end.
            path = good.with_name(f".{good.name}.tmp")
            path.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    return path


def _good_files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*.parquet")) if path.name[:2] != "zz")


def _waits(random: np.random.Generator, kind: Kind, size: int) -> Integers:
    if kind.sigma is None:
        seconds = random.exponential(kind.median / math.log(2), size)
    else:
        seconds = random.lognormal(math.log(kind.median), kind.sigma, size)
    return np.minimum(seconds * _US, _NEVER).astype(np.int64)


def _zipf(random: np.random.Generator, kind: Kind, size: int) -> Integers:
    weights = np.arange(1, kind.keys + 1, dtype=np.float64) ** -kind.zipf
    edges = np.cumsum(weights)
    return np.searchsorted(edges / edges[-1], random.random(size), side="right")


def _names(
    codes: Integers, names: list[str] | tuple[str, ...], *, mask: NDArray[np.bool_] | None = None
) -> pa.DictionaryArray:
    indices = pa.array(codes.astype(np.int32), mask=mask)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(names)))


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = WRITER_OPTIONS
    pq.write_table(table, path, row_group_size=250_000, **options)


def _merge_kind(kind: KindTruth, part: KindTruth) -> None:
    counts = ("operations", "fired", "expired", "cancelled", "drained", "outdated", "unfinished")
    for name in counts:
        setattr(kind, name, getattr(kind, name) + getattr(part, name))
    kind.waits_us += part.waits_us
    kind.lateness_us += part.lateness_us
    for label, counts_of in part.by_label.items():
        known = kind.by_label.get(label, (0, 0))
        kind.by_label[label] = known[0] + counts_of[0], known[1] + counts_of[1]
    for key, count in part.key_counts.items():
        kind.key_counts[key] = kind.key_counts.get(key, 0) + count
