"""The journal that is measured: with every fault in it, and what is true of it beside it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import get_args

from tests.benchmarks.pipeline.known_truth import KnownTruth
from tests.benchmarks.pipeline.planted_advice import PlantedAdvice
from tests.synthetic_journal import KINDS, START, Fault, Kind, SyntheticJournal, Truth, inject

_BURST_S = 180.0
BURST = Kind(
    name="burst", share=1, timeout=900, median=300, sigma=0.001, zipf=0, key_prefix="burst:"
)
"""Waits that all end between 299 and 301 seconds: the peak, of arrivals and of parked requests."""


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
        )
        truth = journal.write(self.files)
        truth.add(self._write_burst(operations, hours))
        for path in journal.deliver_late():
            late = self._late / path.relative_to(self.files)
            late.parent.mkdir(parents=True, exist_ok=True)
            path.rename(late)
        faults: tuple[Fault, ...] = get_args(Fault)
        broken = [inject(self.files, fault) for fault in faults]
        # A hidden file is one that the journal has not finished: nobody looks at it.
        names = [path.relative_to(self.files) for path in broken if path.name[0] != "."]
        advice = PlantedAdvice.of(truth, KINDS, hours, BURST, _BURST_S)
        KnownTruth.of(truth, sorted(map(str, names)), advice).write(self.truth)

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

    def deliver_late(self) -> list[Path]:
        """Put the files that come late among the others; return where they are now."""
        found = []
        for late in sorted(self._late.rglob("*.parquet")):
            path = self.files / late.relative_to(self._late)
            path.hardlink_to(late)
            found.append(path)
        return found

    @property
    def _late(self) -> Path:
        return self.folder / "late"
