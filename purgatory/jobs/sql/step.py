"""What one caller wants of a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A method of JobTransaction, for a sequence of items."""

    name: str
    items: Sequence[Any]
    options: tuple[Any, ...] = ()
    """Steps of one name and the same options are done by one call of the method."""

    def __len__(self) -> int:
        """Return how many items there are."""
        return len(self.items)
