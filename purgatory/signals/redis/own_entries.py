"""Entries that this process has appended, and the callers that wait for them."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future, TimerHandle
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from purgatory.group_commit import RoundTripTimeout
from purgatory.signals.log_replica import LogReplica
from purgatory.signals.model import LogEntry

# uvloop counts in milliseconds: what ends within one is over.
_PRECISION_S: Final = 0.001


class FireDeadlines:
    """Raises TimeoutError in each future that is not done in time, with one timer for all.

    A timer for each would cost a tenth of what a fire costs that shares its round trip. On one
    event loop.
    """

    # Invariant: _waiting is in the order of its times, and _timer is set while any is not done.

    def __init__(self, timeout: RoundTripTimeout) -> None:
        """Give each future that time."""
        self._timeout = timeout
        # (until when, by the time of the loop; future): the first are done first, as a rule.
        self._waiting: deque[tuple[float, Future[Any]]] = deque()
        self._timer: TimerHandle | None = None

    def add(self, future: Future[Any]) -> float:
        """Have `future` raise TimeoutError unless it is done in time; return its deadline."""
        self._drop_done()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._timeout.left_s
        self._waiting.append((until_s, future))
        if self._timer is None:
            self._timer = loop.call_at(until_s, self._expire, loop)
        return until_s

    def hurry(self) -> None:
        """Give what is waiting no more than the timeout leaves now."""
        loop = asyncio.get_running_loop()
        last_s = loop.time() + self._timeout.left_s
        self._waiting = deque((min(until_s, last_s), future) for until_s, future in self._waiting)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = loop.call_at(last_s, self._expire, loop)

    def close(self) -> None:
        """Forget the futures, and end the timer. Idempotent."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop_done(self) -> None:
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        over_s = loop.time() + _PRECISION_S
        while self._waiting and self._waiting[0][0] <= over_s:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(TimeoutError())
        self._drop_done()
        # For the first of those that are left: most timers find nothing to end.
        self._timer = (
            loop.call_at(self._waiting[0][0], self._expire, loop) if self._waiting else None
        )


# Own entries that were not applied yet: more only if nothing arrives from the log for long.
MAX_OWN: Final = 10_000

Ended = int | Future[int]


class _OwnEntry(NamedTuple):
    """An entry that a caller of this process has appended, and waits for."""

    epoch: str
    key: str
    future: Future[Ended]


class OwnEntries:
    """Resumes the callers of one log whose entries were applied here, or never will be."""

    def __init__(self, replica: LogReplica, report: Callable[[str, str], None]) -> None:
        """Call `report` with key and cursor of an acknowledged entry that the log has lost."""
        self._replica = replica
        self._report = report
        # {offset: the caller that has appended it and waits until it is applied}
        self._own: dict[int, _OwnEntry] = {}
        # While this process appends, {(epoch, offset): what the entry has ended}: the message of an
        # entry may arrive before the reply that says whose it is. The newest MAX_OWN: a process
        # that appends all the time has a few of them itself, among those of all others.
        self._early: OrderedDict[tuple[str, int], Ended] = OrderedDict()
        self._appending = 0
        # {future of a caller that waits: the offset in the current epoch that is to be applied}
        self._behind: dict[Future[None], int] = {}
        # Invariant: all(offset >= self._first_behind for offset in self._behind.values())
        self._first_behind = 0

    @contextlib.contextmanager
    def appending(self) -> Iterator[None]:
        """Note what entries end here until their caller is known."""
        self._appending += 1
        try:
            yield
        finally:
            self._appending -= 1
            if not self._appending:
                self._early.clear()

    def add(self, epoch: str, entries: Sequence[LogEntry]) -> list[Future[Ended]]:
        """Return for each entry a future of how many operations it ended."""
        loop = asyncio.get_running_loop()
        futures: list[Future[Ended]] = [loop.create_future() for _ in entries]
        for entry, future in zip(entries, futures, strict=True):
            if entry.offset in self._own:
                # The log uses its offset again.
                self._lose(entry.offset)
            early = self._early.pop((epoch, entry.offset), None)
            if early is not None:
                future.set_result(early)
                continue
            self._own[entry.offset] = _OwnEntry(epoch, entry.key, future)
        return futures

    def bound(self) -> None:
        """Forget the oldest above MAX_OWN."""
        for offset in list(self._own)[: len(self._own) - MAX_OWN]:
            # They are applied all the same, as those of other processes.
            self._end(offset)

    def note(self, entry: LogEntry, ended: Ended) -> None:
        """Resume the caller of an entry that was applied, if there is one."""
        own = self._own.pop(entry.offset, None)
        if own is not None:
            if not own.future.done():
                own.future.set_result(ended)
        elif self._appending:
            self._early[self._replica.epoch, entry.offset] = ended
            if len(self._early) > MAX_OWN:
                # Not by iter() of a dict, which passes over all that were removed.
                self._early.popitem(last=False)
        if self._behind:
            self._resume_behind()

    async def reach(self, offset: int, timeout_s: float) -> bool:
        """Wait until the entry at `offset` was applied; False if it takes too long."""
        if self._replica.applied >= offset:
            return True
        future: Future[None] = asyncio.get_running_loop().create_future()
        self._first_behind = min(offset, self._first_behind) if self._behind else offset
        self._behind[future] = offset
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            self._behind.pop(future, None)
        return self._replica.applied >= offset

    def settle(self, *, all_of_them: bool = False, but_own: bool = False) -> None:
        """Resume the callers whose entries were applied."""
        applied = self._replica.applied
        is_all = all_of_them and not but_own
        for offset in [each for each in self._own if is_all or each <= applied]:
            self._end(offset)
        self._resume_behind(all_of_them=all_of_them)

    def _resume_behind(self, *, all_of_them: bool = False) -> None:
        applied = self._replica.applied
        if not all_of_them and applied < self._first_behind:
            return
        waiting, self._behind = self._behind, {}
        for future, offset in waiting.items():
            if not all_of_them and offset > applied:
                self._behind[future] = offset
            elif not future.done():
                future.set_result(None)
        self._first_behind = min(self._behind.values(), default=0)

    def end_lost(self, *, is_new_log: bool = False) -> None:
        """Report the entries that the log has lost: they are acknowledged."""
        replica = self._replica
        names = {epoch.name for epoch in replica.epochs}
        for offset, own in list(self._own.items()):
            is_known = own.epoch in names
            if not is_known and is_new_log:
                # It was of the log before: every cursor of that is expired.
                self._end(offset)
            elif not is_known or replica.kept_before(own.epoch, offset) is not None:
                # An epoch that is not known is lost, too, and was never seen here.
                self._lose(offset)

    def _lose(self, offset: int) -> None:
        # Perhaps nobody has seen it: it may not even have been applied here.
        own = self._own[offset]
        self._report(own.key, f"{own.epoch}-{offset}")
        self._end(offset)

    def _end(self, offset: int) -> None:
        future = self._own.pop(offset).future
        if not future.done():
            future.set_result(0)
