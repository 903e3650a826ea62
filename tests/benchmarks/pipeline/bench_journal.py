"""The journal that is measured: with every fault in it, and what is true of it beside it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.parquet as pq

from tests.benchmarks.pipeline.known_truth import KnownTruth
from tests.benchmarks.pipeline.planted_advice import PlantedAdvice
from tests.synthetic_journal import (
    KINDS,
    START,
    Fault,
    Kind,
    KindTruth,
    SyntheticJournal,
    Truth,
    inject,
    put,
)

_BURST_S = 180.0
BURST = Kind(
    name="burst", share=1, timeout=900, median=300, sigma=0.001, zipf=0, key_prefix="burst:"
)
"""Waits that all end between 299 and 301 seconds: the peak, of arrivals and of parked requests."""


_GAPS_WORKER = "dropping"
_GAPS_START = "0123456789abcdef"
_POLLS_START = "fedcba9876543210"
_MISSING = 20
_CLIENTS = 100
_POLL_US = 25_000_000
_PAUSE_US = 20_000
_LAST_POLL_US = 15_000_000
_LATENESS_US = 1_000
_IMPOSSIBLE = (0, 253_402_300_800_000_000, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class BenchJournal:
    """A folder with a journal, the files that come late, and the truth about both."""

    folder: Path

    @property
    def files(self) -> Path:
        """Where the journal is; broken files are among its files, and their names begin with zz."""
        return self.folder / "files"

    @property
    def truth(self) -> Path:
        """Where a KnownTruth is; written last."""
        return self.folder / "truth.json"

    def write(self, operations: int) -> None:
        """Write a journal of an operation every 3.6 ms, or of three hours if these are too few.

        The rate is the same for all sizes, so that a larger one has more hours and not larger ones.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        hours = max(3.0, operations / 1_000_000)
        journal = SyntheticJournal(
            operations=operations,
            hours=hours,
            duplicate_share=0.01,
            late_share=0.002,
            dropped_share=0.005,
            drains=(hours / 3,),
            crashes=(hours / 2,),
            crash_loses_seconds=5.0,
            tenants=3,
        )
        truth = journal.write(self.files)
        truth.add(self._write_burst(operations, hours))
        truth.add(self._write_gaps())
        truth.add(self._write_polls())
        for path in journal.deliver_late():
            late = self._late / path.relative_to(self.files)
            late.parent.mkdir(parents=True, exist_ok=True)
            path.rename(late)
        faults: tuple[Fault, ...] = get_args(Fault)
        broken = [inject(self.files, fault) for fault in faults]
        # A hidden file is one that the journal has not finished: nobody looks at it.
        names = [path.relative_to(self.files) for path in broken if path.name[0] != "."]
        advice = PlantedAdvice.of(truth, KINDS, hours, BURST, _BURST_S)
        advice.timeouts_us["poll"] = int(truth.kinds["poll"].waits_us[0][0])
        replaced = pq.read_metadata(self._replaced).num_rows
        KnownTruth.of(
            truth,
            sorted(map(str, names)),
            advice,
            replaced=replaced,
            unknown=len(_IMPOSSIBLE),
            missing={_GAPS_WORKER: _MISSING},
            polls=[3 * _CLIENTS, 2 * _CLIENTS],
        ).write(self.truth)

    def _write_burst(self, operations: int, hours: float) -> Truth:
        """Add operations that arrive within three minutes, and are all parked for two more.

        Nothing restarts meanwhile.
        """
        burst = SyntheticJournal(
            operations=min(9_000, max(3_000, operations // 10)),
            kinds=(BURST,),
            start=START + timedelta(minutes=round(hours * 60 * 0.7)),
            hours=_BURST_S / 3600,
            seed=2,
        )
        folder = self.folder / "burst"
        truth = burst.write(folder)
        for path in sorted(folder.rglob("*.parquet")):
            place = self.files / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            # Its names are those of others.
            path.rename(place.with_name(f"burst-{place.name}"))
        return truth

    def _write_gaps(self) -> Truth:
        """Add a worker of whose records some are missing, and as many others repeated.

        The numbers of the former are between those of the others, and the clock of its machine was
        not set when it began.
        """
        start_us = int((START + timedelta(hours=1)).timestamp()) * 1_000_000
        numbers = [number for number in range(50) if not 20 <= number < 20 + _MISSING // 2]
        rows = [row for number in numbers for row in _records(number, start_us + number * 10**6)]
        impossible = [row for us in _IMPOSSIBLE for row in _records(99, us)[:1]]
        folder = self.files / f"{START:date=%Y-%m-%d}" / "hour=07"
        for name, some in (("gaps", rows), ("gaps-again", rows[-_MISSING:]), ("1970", impossible)):
            put(folder / f"{name}.parquet", *some)
        count = len(numbers)
        kind = KindTruth(operations=count, fired=count, waits_us=[np.full(count, 1_000_000)])
        kind.lateness_us, kind.key_counts = [np.empty(0, np.int64)], {"gaps:0": count}
        read = 2 * count + _MISSING + len(_IMPOSSIBLE)
        return Truth(kinds={"park": kind}, rows=read, repeated_rows=_MISSING)

    def _write_polls(self) -> Truth:
        """Add clients that wait for an event in three polls, some of them into the next hour."""
        start_us = int((START + timedelta(hours=2)).timestamp()) * 1_000_000 - 60_000_000
        rows: list[dict[str, Any]] = []
        for client in range(_CLIENTS):
            of_client: dict[str, Any] = {"kind": "poll", "worker": "polling", "keys": ["poll:0"]}
            of_client |= {"labels": [("wait", f"wait-{client}")]}
            for poll in range(3):
                at_us = start_us + client * 1_000_000 + poll * (_POLL_US + _PAUSE_US)
                wait_us = _LAST_POLL_US if poll == 2 else _POLL_US
                number = client * 3 + poll
                watched, ended = _records(number, at_us, wait_us, start=_POLLS_START, **of_client)
                if poll < 2:
                    ended |= {"event": "expired", "lateness_us": _LATENESS_US}
                rows += watched, ended
        put(self.files / f"{START:date=%Y-%m-%d}" / "hour=08" / "polls.parquet", *rows)
        whole_us = 2 * (_POLL_US + _PAUSE_US) + _LAST_POLL_US
        waits_us = [np.full(_CLIENTS, whole_us)]
        kind = KindTruth(operations=_CLIENTS, fired=_CLIENTS, waits_us=waits_us)
        kind.lateness_us = [np.full(2 * _CLIENTS, _LATENESS_US)]
        kind.key_counts = {"poll:0": _CLIENTS}
        return Truth(kinds={"poll": kind}, rows=len(rows))

    def deliver_late(self) -> list[Path]:
        """Put the files that come late among the others; return where they are now.

        And touch others, as a copy does, and replace one by its own records: by another file each
        time, as several engines read the same journal one after another.
        """
        for path in self.files.rglob("burst-*.parquet"):
            os.utime(path, ns=(0, 1_763_000_000 * 10**9))
        events = pq.read_table(self._replaced, partitioning=None)
        parts = 1 if pq.read_metadata(self._replaced).num_row_groups > 1 else 2
        pq.write_table(events, self._replaced, row_group_size=max(1, events.num_rows // parts))
        found = []
        for late in sorted(self._late.rglob("*.parquet")):
            path = self.files / late.relative_to(self._late)
            path.hardlink_to(late)
            found.append(path)
        return found

    @property
    def _late(self) -> Path:
        return self.folder / "late"

    @property
    def _replaced(self) -> Path:
        return min(self.files.rglob("000000-*.parquet"))


def _records(
    number: int, start_us: int, wait_us: int = 1_000_000, start: str = _GAPS_START, **more: Any
) -> list[dict[str, Any]]:
    """Return the records of an operation that fires after `wait_us`."""
    most = 2**63 - 1
    ended_us = min(start_us + wait_us, most)
    row: dict[str, Any] = {
        "operation_id": f"{start}-{number}",
        "kind": "park",
        "worker": _GAPS_WORKER,
        "keys": ["gaps:0"],
        "watched_at": start_us,
        "deadline": min(start_us + 25_000_000, most),
        **more,
    }
    return [
        row | {"event": "watched", "seq": 2 * number + 1, "at": start_us},
        row | {"event": "fired", "seq": 2 * number + 2, "at": ended_us, "completed_at": ended_us},
    ]
