"""What a run knows before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from purgatory.pipeline.outcomes.manifest import Manifest, fingerprint
from purgatory.pipeline.spark.folder import File, Folder


@dataclass(frozen=True, slots=True)
class Known:
    """The manifest of the table of outcomes, and what it knows of the journal's files.

    Listing a year of hours takes longer than reading one of them, so a command does it once.
    """

    manifest: Manifest
    files: dict[str, set[str]]
    """The fingerprints of the files that are there and merged, by folder."""
    new: Sequence[File]
    """The other files, sorted."""

    @classmethod
    def of(cls, manifest: Manifest, journal: Folder) -> Self:
        """Return what `manifest` knows of the files of `journal` now."""
        files: dict[str, set[str]] = {}
        new: list[File] = []
        for file in journal.files(".parquet"):
            folder, found = fingerprint(file)
            if found in manifest.files.get(folder, ()):
                files.setdefault(folder, set()).add(found)
            else:
                new.append(file)
        return cls(manifest, files, new)

    @property
    def known_files(self) -> int:
        """The number of files that are there and merged."""
        return sum(map(len, self.files.values()))

    @property
    def bytes(self) -> int:
        """The size of the new files."""
        return sum(file.size for file in self.new)
