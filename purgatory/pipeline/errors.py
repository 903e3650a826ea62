"""Errors of the pipeline.

PurgatoryError
+-- PipelineError (RuntimeError)
    +-- NoJavaError                        no Java that Spark could run on
    +-- NothingToReadError (LookupError)   a folder without the input of a job
    +-- BadFileError (ValueError)          a file that is damaged, incomplete or of another schema
    +-- OutputInUseError                   another run published to the same folder
    +-- RefusedRowsError (ValueError)      rows of a table that are not valid jobs
    +-- TargetsMissedError                 a report missed a target that was given
"""

from __future__ import annotations

import errno
import os
from typing import Final

from purgatory.errors import PurgatoryError

_WAYS_OUT: Final = {
    errno.ENOSPC: "Free some space, there or in the folder of temporary files (TMPDIR)",
    errno.EDQUOT: "Free some space of the quota, or raise it",
    errno.EROFS: "Mount it for writing, or give another --out",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
}


def way_out_of_system(error: BaseException) -> str:
    """Return what to do about a fault of the machine, not of a file; "" if it is none.

    Engines have the system's own text of it in theirs.
    """
    text = str(error)
    return next((way for code, way in _WAYS_OUT.items() if os.strerror(code) in text), "")


class PipelineError(PurgatoryError, RuntimeError):
    """A job of the pipeline failed."""


class NoJavaError(PipelineError):
    """Spark needs Java 17 or newer."""


class NothingToReadError(PipelineError, LookupError):
    """There is nothing to read."""


class BadFileError(PipelineError, ValueError):
    """A file is damaged, incomplete or of another schema."""


class OutputInUseError(PipelineError):
    """Another run published to the same folder."""


class RefusedRowsError(PipelineError, ValueError):
    """Rows of a table are not valid jobs."""


class TargetsMissedError(PipelineError):
    """A report was written, and misses a target that was given."""
