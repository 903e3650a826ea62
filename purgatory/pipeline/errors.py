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

from purgatory.errors import PurgatoryError


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
