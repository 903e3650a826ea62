"""Parsed requests to wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from purgatory.fastapi.http.wait_duration import jittered
from purgatory.signals import Condition


@dataclass(frozen=True, slots=True)
class WatchTerms:
    """The options of a wait, without its keys: requests with equal options share one object."""

    wait: float
    """Seconds, after the maximum was applied."""
    limit: int = 100
    min_signals: int = 1
    needed_keys: int = 1
    is_single: bool = True
    is_conditional: bool = False
    """If-None-Match was given: a wait that expires gets 304."""
    is_minimal: bool = False
    """Prefer: return=minimal: 204 in place of an empty 200."""
    applied: tuple[str, ...] = ()
    """The value of Preference-Applied."""
    condition: Condition = field(init=False, compare=False)
    """`min_signals` and `needed_keys` as the operation takes them."""
    is_plain: bool = field(init=False)
    """True iff only keys, positions and the limit determine the response."""

    def __post_init__(self) -> None:
        """Work out what is asked for each answer."""
        is_plain = self.is_single and not (self.is_conditional or self.is_minimal or self.applied)
        object.__setattr__(self, "is_plain", is_plain)
        condition = Condition(self.min_signals, self.needed_keys)
        object.__setattr__(self, "condition", condition)

    @property
    def timeout(self) -> float:
        """Seconds until the answer: 0.9 to 1 of a long wait, all of a short one."""
        return jittered(self.wait)


class WatchRequest(NamedTuple):
    """A wait for one key or for several, checked."""

    keys: tuple[str, ...]
    positions: tuple[int, ...]
    """For each key, the position after which signals count."""
    terms: WatchTerms
    wait_id: str | None
