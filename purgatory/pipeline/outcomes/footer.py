"""The part of the footer of a journal file that a run uses."""

from __future__ import annotations

import json
from dataclasses import dataclass

from purgatory.pipeline.outcomes.schema import SAMPLE_KEY


@dataclass(frozen=True, slots=True)
class Footer:
    """The part of a file's footer that a run uses."""

    rows: int
    sampling: dict[str, float]
    """The share of the operations that was recorded, of each sampled kind."""


def sampling_of(text: str | None) -> dict[str, float]:
    """Return the shares in a file's metadata. Raises ValueError for others than the journal's."""
    if text is None:
        return {}
    found = json.loads(text)
    if not isinstance(found, dict) or not all(
        isinstance(share, int | float) and 0 <= share <= 1 for share in found.values()
    ):
        raise ValueError(f"{SAMPLE_KEY} in its metadata is {text!r}, not shares of kinds")
    # Of a kind that is left out there is nothing to scale.
    return {kind: float(share) for kind, share in found.items() if 0 < share < 1}
