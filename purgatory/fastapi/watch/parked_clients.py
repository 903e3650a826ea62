"""How many requests each client has parked."""

from __future__ import annotations

from typing import Final

from purgatory.errors import LimitReachedError
from purgatory.purgatory import Purgatory

LIMIT: Final = "max_parked_per_client"


class ParkedClients:
    """Counts clients, and refuses one that has too many; the empty one is not counted."""

    def __init__(self, maximum: int, purgatory: Purgatory) -> None:
        """Allow `maximum` requests for each; whom it refuses, the statistics of `purgatory` say."""
        self._maximum = maximum
        self._purgatory = purgatory
        # {client: how many}: without those that have none.
        self._counts: dict[str, int] = {}

    def check(self, client: str) -> None:
        """Raise LimitReachedError where one more would be one too many."""
        if client and self._counts.get(client, 0) >= self._maximum:
            self._purgatory.count_refusal(LIMIT)
            raise LimitReachedError(
                f"this client has {self._maximum} requests parked already, which is the limit",
                limit=LIMIT,
                maximum=self._maximum,
            )

    def enter(self, client: str) -> None:
        """Count one more; raise LimitReachedError where that is one too many."""
        self.check(client)
        if client:
            self._counts[client] = self._counts.get(client, 0) + 1

    def leave(self, client: str) -> None:
        """Count one less, after `enter`."""
        if not client:
            return
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]
