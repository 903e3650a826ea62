"""A synthetic journal that was written, with what is true of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.synthetic_journal import SyntheticJournal, Truth


@dataclass(frozen=True, slots=True)
class Written:
    """A journal in a folder."""

    folder: Path
    truth: Truth
    journal: SyntheticJournal

    @property
    def glob(self) -> str:
        """The files that are there for every reader: a dot hides."""
        return f"{self.folder}/*/*/*.parquet"


def write(folder: Path, **options: Any) -> Written:
    """Write a journal; `options` are those of SyntheticJournal."""
    journal = SyntheticJournal(**options)
    return Written(folder, journal.write(folder), journal)
