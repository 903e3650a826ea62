"""The manifests of a command's results."""

from __future__ import annotations

from purgatory.pipeline.outcomes.manifest import Manifest, newest_run, read_manifest
from purgatory.pipeline.rollups.rollup_manifest import RollupManifest, read_rollup_manifest
from purgatory.pipeline.rollups.rollups import FOLDER
from purgatory.pipeline.spark.folders import folder_at


class Manifests:
    """Reads each manifest once, until another run has published: after a year they are large.

    What is returned must not be changed.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._outcomes: dict[str, Manifest] = {}
        self._rollups: dict[str, RollupManifest] = {}

    def outcomes(self, path: str) -> Manifest:
        """Return the valid manifest of the outcomes below `path`."""
        folder = folder_at(f"{path}/outcomes")
        known = self._outcomes.get(path)
        if known is None or known.run != newest_run(folder):
            known = self._outcomes[path] = read_manifest(folder)
        return known

    def rollups(self, path: str) -> RollupManifest:
        """Return the manifest of the rollups below `path`."""
        folder = folder_at(f"{path}/{FOLDER}")
        known = self._rollups.get(path)
        if known is None or known.run != newest_run(folder):
            known = self._rollups[path] = read_rollup_manifest(folder)
        return known

    def put(self, path: str, outcomes: Manifest) -> None:
        """Use the manifest that a run has published."""
        self._outcomes[path] = outcomes
