"""The work of a command: the size of the files that it has to read."""

from __future__ import annotations

import argparse

from purgatory.pipeline.outcomes.manifest import Manifest, read_manifest
from purgatory.pipeline.rollups.rollup_manifest import read_rollup_manifest
from purgatory.pipeline.rollups.rollups import FOLDER
from purgatory.pipeline.spark.folders import folder_at


def bytes_to_read(options: argparse.Namespace) -> int:
    """Return the size of the new files of the journal, and of the outcomes without rollups.

    What earlier runs have read is not read again, whatever its size. Raises PipelineError for a
    folder that cannot be listed.
    """
    manifest = read_manifest(folder_at(f"{options.out}/outcomes"))
    size = 0
    if options.journal:
        files = folder_at(options.journal).files(".parquet")
        size += sum(file.size for file in files if not manifest.is_known(file))
    if options.needs_rollups:
        size += _bytes_of_stale_hours(options.out, manifest)
    return size


def _bytes_of_stale_hours(out: str, manifest: Manifest) -> int:
    stale = read_rollup_manifest(folder_at(f"{out}/{FOLDER}")).stale_hours(manifest)
    outcomes = folder_at(f"{out}/outcomes")
    return sum(
        file.size for path in manifest.paths(stale) for file in outcomes.files(".parquet", path)
    )
