"""The work of a command: what it has to read."""

from __future__ import annotations

import argparse
from functools import cached_property

from purgatory.pipeline.cli.manifests import Manifests
from purgatory.pipeline.outcomes.known import Known
from purgatory.pipeline.spark.folders import folder_at


class Work:
    """What a command with these options has to read, listed once and only if it is used.

    Raises PipelineError for a folder that cannot be listed.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        """Use the options --journal and --out."""
        self._options = options
        self.manifests = Manifests()

    @cached_property
    def known(self) -> Known:
        """The files of the journal, which the command has."""
        manifest = self.manifests.outcomes(self._options.out)
        return Known.of(manifest, folder_at(self._options.journal))

    @cached_property
    def bytes(self) -> int:
        """The size of the new files of the journal, and of the outcomes without rollups.

        What earlier runs have read is not read again, whatever its size.
        """
        size = self.known.bytes if self._options.journal else 0
        if self._options.needs_rollups:
            size += self._bytes_of_stale_hours()
        return size

    def _bytes_of_stale_hours(self) -> int:
        out = self._options.out
        manifest = self.manifests.outcomes(out)
        stale = self.manifests.rollups(out).stale_hours(manifest)
        outcomes = folder_at(f"{out}/outcomes")
        return sum(
            file.size for path in manifest.paths(stale) for file in outcomes.files(".parquet", path)
        )
