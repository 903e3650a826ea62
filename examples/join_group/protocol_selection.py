"""The selection of a generation's protocol (Kafka: GroupMetadata.selectProtocol)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence


def common_protocols(supported: Iterable[Collection[str]]) -> set[str]:
    """Return the protocols that all members support; empty if there are no members."""
    sets = [set(protocols) for protocols in supported]
    return set.intersection(*sets) if sets else set()


def select_protocol(supported: Sequence[Collection[str]]) -> str:
    """Return the protocol that most members prefer, among those that all support.

    Each item lists a member's protocols, the preferred one first. The first member decides between
    protocols with equal votes. Raises ValueError if there is no common protocol.
    """
    candidates = common_protocols(supported)
    if not candidates:
        raise ValueError("the members have no protocol in common")
    votes = Counter(_first_of(protocols, candidates) for protocols in supported)
    # max returns the first of equals.
    return max((name for name in supported[0] if name in candidates), key=votes.__getitem__)


def _first_of(protocols: Collection[str], candidates: Collection[str]) -> str:
    return next(name for name in protocols if name in candidates)
