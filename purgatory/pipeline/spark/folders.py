"""Addresses of folders."""

from __future__ import annotations

import re

from purgatory.pipeline.spark.folder import Folder
from purgatory.pipeline.spark.local_folder import LocalFolder
from purgatory.pipeline.spark.remote_folder import RemoteFolder


def folder_at(path: str) -> Folder:
    """Return the folder at `path`: of this machine, unless it has another scheme than `file`."""
    return LocalFolder(path) if is_local(path) else RemoteFolder(path)


def is_local(path: str) -> bool:
    """Return whether `path` is of this machine; `a:b` is a name with a colon."""
    return path.startswith("file:/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is None
