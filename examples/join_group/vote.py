"""Which protocol a generation uses (Kafka: GroupMetadata.selectProtocol)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence


def in_common(ballots: Iterable[Collection[str]]) -> set[str]:
    """Return the protocols that stand on every ballot; none where there is no ballot."""
    sets = [set(ballot) for ballot in ballots]
    return set.intersection(*sets) if sets else set()


def elect(ballots: Sequence[Collection[str]]) -> str:
    """Return the protocol that most members like best, among those that all of them support.

    A ballot lists a member's protocols, the best first. Of two with as many votes it is the one
    that the first member likes better. Raises ValueError where they have none in common.
    """
    candidates = in_common(ballots)
    if not candidates:
        raise ValueError("the members have no protocol in common")
    votes = Counter(_first_of(ballot, candidates) for ballot in ballots)
    # max returns the first of equals.
    return max((name for name in ballots[0] if name in candidates), key=votes.__getitem__)


def _first_of(ballot: Collection[str], candidates: Collection[str]) -> str:
    return next(name for name in ballot if name in candidates)
