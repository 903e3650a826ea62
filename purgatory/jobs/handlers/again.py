"""The return value of a handler whose job is to wait again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal

from purgatory.timer.seconds import Seconds


class _Unchanged(Enum):
    """A payload that stays as it is; None is a payload."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "unchanged"


UNCHANGED: Final = _Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """The next wait of a job, made by `JobContext.again`."""

    delay: Seconds | None = None
    at: datetime | None = None
    keys: Iterable[str] | None = None
    since: str | Mapping[str, str] | None = None
    until: Literal["any", "all"] | int | None = None
    on_fire: Literal["run", "cancel"] | None = None
    payload: Any = UNCHANGED
