"""This package as an archive, for executors where it is not installed."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

_ROOT = Path(__file__).parents[2]


def write_archive(folder: Path) -> Path:
    """Write `purgatory.zip` to `folder` and return its path: for `spark-submit --py-files`.

    It has the sources of this package: Python imports no compiled modules from an archive.
    """
    path = folder / f"{_ROOT.name}.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for file in sorted(_ROOT.rglob("*")):
            if file.is_file() and file.suffix not in (".pyc", ".so"):
                archive.write(file, file.relative_to(_ROOT.parent))
    return path
