"""The treatment of files that cannot be read."""

from __future__ import annotations

from enum import StrEnum


class OnBadFile(StrEnum):
    """Whether a bad file is skipped or fails the job."""

    SKIP = "skip"
    """Skip, name and count it; the next run tries it again."""
    REFUSE = "refuse"
    """Raise BadFileError; nothing is written."""
