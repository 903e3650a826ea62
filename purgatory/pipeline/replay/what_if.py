"""The parameters that a replay changes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MOST_FACTOR = 1_000_000


class Growth(StrEnum):
    """The keys of additional traffic."""

    WIDER = "wider"
    """More customers: each copy of an operation has keys of its own."""
    BUSIER = "busier"
    """Busier customers: all copies have the same keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Changes of a load: more traffic, other timeouts, another wheel.

    Raises ValueError for parameters out of range.
    """

    traffic: float = 1.0
    """The factor of operations. A fraction keeps or repeats whole keys."""
    timeout: float = 1.0
    """The factor of each timeout, which is rounded down to a millisecond."""
    growth: Growth = Growth.WIDER
    tick_ms: int = 1
    wheel_size: int = 256

    def __post_init__(self) -> None:
        for name, value in (("traffic", self.traffic), ("timeout", self.timeout)):
            if not 0 < value <= MOST_FACTOR:
                raise ValueError(f"{name} is {value}: give a factor above 0, up to {MOST_FACTOR:,}")
        if self.tick_ms < 1:
            raise ValueError(f"tick_ms is {self.tick_ms}: give 1 or more")
        if self.wheel_size < 2:
            raise ValueError(f"wheel_size is {self.wheel_size}: give 2 or more")
