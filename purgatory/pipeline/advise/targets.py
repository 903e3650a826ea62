"""The targets that the verdict compares with, and the advice aims at."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final, Self

LATE_US: Final = 250_000
"""An operation that ends so long after its deadline is late."""
LATE_JOB_US: Final = 5_000_000
"""A job that starts so long after it was due is late. Both are those of the alert rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The greatest share of the operations of a kind that may come to each harm.

    Refused requests are in no journal, as they never wait: `purgatory_refused_total` has them.
    """

    expired: float = 0.01
    """Requests whose timeout passed before a key fired; also the aim of advised timeouts."""
    lost: float = 0.001
    late: float = 0.01
    failed: float = 0.001
    """Jobs that failed for good."""
    drained: float = 0.01
    """Requests that a deploy ended."""

    def __post_init__(self) -> None:
        """Raise ValueError for a share that is not above 0, or above 1."""
        for field in fields(self):
            share = getattr(self, field.name)
            # Written so that NaN, which compares as false, is refused.
            if not 0 < share <= 1:
                raise ValueError(
                    f"the target of {field.name} is {share:g}: give a share above 0, at most 100%"
                )

    def __str__(self) -> str:
        """Return the text that `of` takes."""
        shares = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ",".join(f"{name}={100 * share:g}%" for name, share in shares)

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the targets that `text` changes, such as "expired=5%,lost=0.0001".

        Raises ValueError.
        """
        names = [field.name for field in fields(cls)]
        given: dict[str, float] = {}
        for part in text.split(","):
            name, _, share = (piece.strip() for piece in part.partition("="))
            if name not in names:
                raise ValueError(f"unknown target {name!r}: choose from {', '.join(names)}")
            given[name] = _share(share)
        return cls(**given)


def _share(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return math.nan
