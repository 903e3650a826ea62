"""Fires that may be repeated: what names them, and for how long a repeat is recognized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPEAT_S: Final = 600
"""Seconds for which a repeat is recognized: by one process, and by the log of several."""
REPEATS_PER_OWNER: Final = 10_000
"""How many names of one owner a log of several processes keeps: the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """The name of a request, so that its repeat appends nothing."""

    owner: str
    """The owner of the name; the names of different owners are different."""
    name: str
    fingerprint: str
    """Identifies the content: a repeat with another one is refused."""
    is_of_one_key: bool = False
    """Nobody uses the name for another key: only the log of that has to know it."""
