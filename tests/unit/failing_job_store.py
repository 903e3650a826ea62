"""A store of jobs that goes away when it is told to."""

from __future__ import annotations

from collections.abc import Callable

from purgatory.jobs import MemoryJobStore, StoreUnavailableError


class FailingJobStore(MemoryJobStore):
    """Jobs in memory, behind a connection that can be cut."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms=now_ms)
        self.is_down = False
        self.asked = 0
        self.is_telling = True

    @property
    def hears_others(self) -> bool:
        """False where it is to be polled, as a database is."""
        return self.is_telling

    async def open(self) -> None:
        if self.is_down:
            raise StoreUnavailableError("nobody listens at nowhere:1")
        await super().open()

    def _begin(self) -> int:
        self.asked += 1
        if self.is_down:
            raise StoreUnavailableError("nobody listens at nowhere:1")
        return super()._begin()
