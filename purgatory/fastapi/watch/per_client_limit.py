"""The limit on requests that one client has parked."""

from __future__ import annotations

from typing import Final

from purgatory.errors import LimitReachedError
from purgatory.purgatory import Purgatory

LIMIT: Final = "max_parked_per_client"


class PerClientLimit:
    """Counts the parked requests of each client; the empty client is not counted."""

    def __init__(self, maximum: int, purgatory: Purgatory) -> None:
        """Allow `maximum` requests per client; count refusals in the statistics of `purgatory`."""
        self._maximum = maximum
        self._purgatory = purgatory
        # Invariant: all(count > 0 for count in self._counts.values())
        self._counts: dict[str, int] = {}

    def check(self, client: str) -> None:
        """Raise LimitReachedError if `client` may not park another request."""
        if client and self._counts.get(client, 0) >= self._maximum:
            self._purgatory.count_refusal(LIMIT)
            raise LimitReachedError(
                f"this client has too many parked requests (limit {self._maximum})",
                limit=LIMIT,
                maximum=self._maximum,
            )

    def enter(self, client: str) -> None:
        """Count a parked request; raise LimitReachedError if that is one too many."""
        self.check(client)
        if client:
            self._counts[client] = self._counts.get(client, 0) + 1

    def leave(self, client: str) -> None:
        """Count a parked request less, after `enter`."""
        if not client:
            return
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]
