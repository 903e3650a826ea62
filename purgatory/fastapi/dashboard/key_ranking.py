"""The keys with the most waits."""

from __future__ import annotations

import asyncio
from heapq import nlargest
from typing import Any, Final

from purgatory.event_loop.inspection import Inspection

SHOWN_KEYS: Final = 50
# Keys in one turn of the event loop: about half a millisecond.
SLICE: Final = 1_000
# Of the time, at most this part is spent on ranking.
SHARE: Final = 0.02


class KeyRanking:
    """Finds the keys with the most waits, in slices; between two searches only those are read.

    So a snapshot takes as long as what it shows, however many keys are watched.
    """

    def __init__(self, inspection: Inspection) -> None:
        """Rank the keys of a purgatory."""
        self._inspection = inspection
        self._first: list[str] = []
        self._due_s = 0.0

    async def rows(self) -> list[dict[str, Any]]:
        """Return the keys with how many wait and since when, the fullest first."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._due_s:
            begun_s = loop.time()
            self._first = await self._ranked()
            took_s = loop.time() - begun_s
            self._due_s = begun_s + took_s / SHARE
        inspection = self._inspection
        now_ms = inspection.now_ms()
        rows: list[dict[str, Any]] = []
        for key in self._first:
            start_ms = inspection.oldest_start_ms(key)
            if start_ms is not None:
                age_ms = max(0, now_ms - start_ms)
                rows.append({"key": key, "waiting": inspection.count(key), "oldest_ms": age_ms})
        rows.sort(key=lambda row: (-row["waiting"], row["key"]))
        return rows

    async def _ranked(self) -> list[str]:
        count = self._inspection.count
        found: list[tuple[int, str]] = []
        keys = self._inspection.watched()
        for start in range(0, len(keys), SLICE):
            counted = [(count(key), key) for key in keys[start : start + SLICE]]
            found = nlargest(SHOWN_KEYS, (*found, *counted))
            await asyncio.sleep(0)
        return [key for _, key in found]
