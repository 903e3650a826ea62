"""A store that is out of reach, slow, or loses replies, as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from purgatory.ownership import LeaseStore, OwnershipUnavailableError
from purgatory.ownership.lease import LeaseResult, LeaseStep


class LossyStore:
    """Passes steps on to another store, unless told otherwise."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self.is_cut = False
        self.loses_replies = False
        self.delay = 0.0
        self.round_trips = 0

    async def open(self) -> None:
        """Connect."""
        await self._store.open()

    async def close(self) -> None:
        """Disconnect."""
        await self._store.close()

    async def run(self, steps: Sequence[LeaseStep]) -> list[LeaseResult]:
        """Run steps, or lose them or their replies."""
        self.round_trips += 1
        errors: list[LeaseResult] = [OwnershipUnavailableError("cut")] * len(steps)
        if self.is_cut:
            return errors
        results = await self._store.run(steps)
        await asyncio.sleep(self.delay)
        return errors if self.loses_replies else results
