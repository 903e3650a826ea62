"""A store of jobs that goes away when it is told to."""

from __future__ import annotations

from collections.abc import Callable

from purgatory.jobs import MemoryJobStore, StoreError, StoreUnavailableError


class FailingJobStore(MemoryJobStore):
    """Jobs in memory, behind a connection that can be cut."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms=now_ms)
        self.is_down = False
        self.error: type[StoreError] = StoreUnavailableError
        self.asked = 0
        self.is_telling = True
        self.failing: set[int] = set()
        """The numbers of requests that fail, counted by `asked`."""

    @property
    def hears_others(self) -> bool:
        """False where it is to be polled, as a database is."""
        return self.is_telling

    async def open(self) -> None:
        self._require_up()
        await super().open()

    def _begin(self) -> int:
        self.asked += 1
        self._require_up()
        return super()._begin()

    def _require_up(self) -> None:
        if self.is_down or self.asked in self.failing:
            raise self.error("nobody listens at nowhere:1")
