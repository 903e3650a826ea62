"""The findings of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    result: Literal["ok", "warning", "failed"]
    what: str
    detail: str
