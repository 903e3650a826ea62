"""Fires that may be repeated: what names them, and for how long a repeat is recognized."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

REPEAT_S: Final = 600
"""Seconds for which a repeat is recognized: by one process, and by the log of several."""
REPEAT_PART: Final = 0.25
"""The part of `Limits.max_signal_bytes` that names and responses may take in addition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """The name of a request, so that its repeat appends nothing."""

    owner: str
    """The owner of the name; the names of different owners are different.

    Owners share the memory fairly: once it is full, the one with most forgets its oldest names.
    """
    name: str
    fingerprint: str
    """Identifies the content: a repeat with another one is refused."""
    is_of_one_key: bool = False
    """Nobody uses the name for another key: only the log of that has to know it."""

    @property
    def hash(self) -> str:
        """Hexadecimal digits for this owner and name, and no others."""
        text = f"{len(self.owner)} {self.owner}{self.name}".encode("utf-8", "surrogatepass")
        return blake2b(text, digest_size=16).hexdigest()
