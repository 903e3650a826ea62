"""What the pipeline refuses, and why.

PurgatoryError
+-- PipelineError (RuntimeError)
    +-- NoJavaError                        no Java that Spark could run on
    +-- NothingToReadError (LookupError)   a folder without what a job reads
    +-- BadFileError (ValueError)          a file that is broken, half-written or of another schema
    +-- OutputInUseError                   another run published to the same folder meanwhile
    +-- LostEntriesError                   entries of a stream were trimmed before they were read
    +-- RefusedRowsError (ValueError)      rows of a table became no jobs
    +-- AlertRefusedError                  a service did not take an alert
"""

from __future__ import annotations

from purgatory.errors import PurgatoryError


class PipelineError(PurgatoryError, RuntimeError):
    """A job of the pipeline cannot go on."""


class NoJavaError(PipelineError):
    """Spark needs Java 17 or newer."""


class NothingToReadError(PipelineError, LookupError):
    """There is nothing to read."""


class BadFileError(PipelineError, ValueError):
    """A file cannot be read as what it should be."""


class OutputInUseError(PipelineError):
    """Another run published to the same folder."""


class LostEntriesError(PipelineError):
    """Entries of a stream were trimmed before they were read."""


class RefusedRowsError(PipelineError, ValueError):
    """Rows of a table became no jobs."""


class AlertRefusedError(PipelineError):
    """A service did not take an alert."""
