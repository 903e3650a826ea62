"""What is to be done about a file that cannot be read."""

from __future__ import annotations

from enum import StrEnum


class OnBadFile(StrEnum):
    """Whether a broken file is left out, or ends the job."""

    SKIP = "skip"
    """Leave it out, name it and count it; the next run looks at it again."""
    REFUSE = "refuse"
    """Raise BadFileError; nothing is written."""
