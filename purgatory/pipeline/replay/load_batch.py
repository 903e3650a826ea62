"""Batches of a load: the operations that arrive within an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

NEVER_NS: Final = 2**62
"""The end of an operation that only its deadline ends."""


@dataclass(frozen=True, slots=True)
class LoadBatch:
    """Operations in order of arrival, one for each index of the arrays."""

    # Invariant: all arrays and lists have one length; arrival_ns never falls, within a batch and
    # from one to the next; end_ns is NEVER_NS where the fate is NONE or UNKNOWN.
    arrival_ns: Integers
    delay_ms: Integers
    end_ns: Integers
    fate: Integers
    keys: list[tuple[str, ...]]
    fired_keys: list[str | None]
    """The key through which each was fired; None unless it was FIRED."""

    @classmethod
    def concatenated(cls, batches: Sequence[LoadBatch]) -> LoadBatch:
        """Return one batch for several consecutive ones."""
        if len(batches) == 1:
            return batches[0]
        return cls(
            arrival_ns=np.concatenate([batch.arrival_ns for batch in batches]),
            delay_ms=np.concatenate([batch.delay_ms for batch in batches]),
            end_ns=np.concatenate([batch.end_ns for batch in batches]),
            fate=np.concatenate([batch.fate for batch in batches]),
            keys=list(chain.from_iterable(batch.keys for batch in batches)),
            fired_keys=list(chain.from_iterable(batch.fired_keys for batch in batches)),
        )

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self.arrival_ns)
