"""A baseline: timers in a heap, cancelled lazily."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

NS_PER_MS = 1_000_000

# [deadline in ns, number, callback, or None once it was cancelled]
HeapEntry = list[Any]


class HeapTimer:
    """The recipe of the `heapq` documentation, with a clean-up that keeps cancelled ones few.

    A cancelled entry stays until it comes up, or until more than half are cancelled; that rule is
    asyncio's own.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._heap: list[HeapEntry] = []
        self._numbers = count()
        self._cancelled = 0

    def call_later(self, delay_ms: int, callback: Callable[[], object]) -> HeapEntry:
        """Call `callback` in `delay_ms`; return the argument of `cancel`."""
        deadline_ns = self._now_ns() + delay_ms * NS_PER_MS
        entry: HeapEntry = [deadline_ns, next(self._numbers), callback]
        heappush(self._heap, entry)
        return entry

    def cancel(self, entry: HeapEntry) -> None:
        """Cancel a timer."""
        if entry[2] is not None:
            entry[2] = None
            self._cancelled += 1

    def clean_up(self) -> None:
        """Drop cancelled timers if they are more than half; called once a turn."""
        heap = self._heap
        if self._cancelled * 2 > len(heap):
            self._heap = [entry for entry in heap if entry[2] is not None]
            heapify(self._heap)
            self._cancelled = 0

    def run_due(self) -> int:
        """Call the due timers; return how many."""
        heap, now_ns = self._heap, self._now_ns()
        ran = 0
        while heap and heap[0][0] <= now_ns:
            callback = heappop(heap)[2]
            if callback is None:
                self._cancelled -= 1
                continue
            callback()
            ran += 1
        return ran
