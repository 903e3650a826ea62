"""What `doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    result: Literal["ok", "warning", "failed"]
    what: str
    detail: str
