"""Files that DuckDB reads and writes, in a folder of this machine or elsewhere."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from purgatory.pipeline.spark.folder import Folder
from purgatory.pipeline.spark.local_folder import LocalFolder


class NodeFiles:
    """Gives the files of a folder local paths: their own, or those of copies.

    Files elsewhere are copied here when they are read first, and there by `publish`.
    """

    def __init__(self, folder: Folder) -> None:
        """Use `folder`."""
        self._folder = folder
        self._local = folder.local() if isinstance(folder, LocalFolder) else None
        self._copies: Path | None = None
        self._published: set[str] = set()

    def path(self, place: str) -> Path:
        """Return the local path of a place, which need not exist."""
        if self._local is not None:
            return self._local / place
        if self._copies is None:
            self._copies = Path(tempfile.mkdtemp(prefix="purgatory-rollups-"))
            weakref.finalize(self, shutil.rmtree, self._copies, ignore_errors=True)
        return self._copies / place

    def fetch(self, places: Iterable[str]) -> list[str]:
        """Return the local paths of the Parquet files in the folders `places`."""
        return [str(path) for place in places for path in self._fetched(place)]

    def publish(self, *places: str) -> None:
        """Copy what was written below the local paths of `places` to the folder."""
        if self._local is not None:
            return
        for place in places:
            for path in sorted(self.path(place).rglob("*.parquet")):
                inside = path.relative_to(self.path("")).as_posix()
                if inside not in self._published:
                    self._folder.write_bytes(inside, path.read_bytes())
                    self._published.add(inside)

    def _fetched(self, place: str) -> list[Path]:
        path = self.path(place)
        if self._local is None and not path.exists():
            path.mkdir(parents=True)
            for file in self._folder.files(".parquet", place):
                with self._folder.open(file.path) as content:
                    (path / PurePosixPath(file.path).name).write_bytes(content.read())
        return sorted(path.glob("*.parquet"))
