"""Applying the entries of one log here, each once and in order."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from purgatory.event_loop.parked_operations import LogListener
from purgatory.signals.log_replica import LogReplica
from purgatory.signals.model import EntryType, LogEntry
from purgatory.signals.redis.entry_codec import EntryCodec, split_message
from purgatory.trace_context import TracePropagation
from purgatory.turn_budget import TurnBudget

# Own entries that were not applied yet: more only if nothing arrives from the log for long.
MAX_OWN: Final = 10_000
# A message of more is applied in slices, by a task.
_AT_ONCE: Final = 16
_AT_ONCE_BYTES: Final = 64 * 1024

Ended = int | Future[int]


class _OwnEntry(NamedTuple):
    """An entry that a caller of this process has appended, and waits for."""

    epoch: str
    key: str
    future: Future[Ended]


class EntryApplier:
    """Applies entries to the copy of their log, and tries the operations on their keys.

    Entries arrive in messages, in pages that the follower reads, and in replies to appends of this
    process. Callers of those are resumed once their entries were applied, or never will be.
    """

    def __init__(
        self,
        replica: LogReplica,
        codec: EntryCodec,
        report: Callable[[Mapping[str, str]], None] = lambda lost: None,
    ) -> None:
        """`report` is called with {key: cursor} of acknowledged entries that the log has lost."""
        self.replica = replica
        self.listener: LogListener | None = None
        self.propagation: TracePropagation | None = None
        self.applied = 0
        """How many entries were applied here, since the start."""
        self.reading = asyncio.Lock()
        """Held while the log is read: messages are left to the task that does it."""
        self._codec = codec
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

    def apply_message(self, data: bytes) -> bool:
        """Apply a short message that follows what is here; False if it is left to the task."""
        replica = self.replica
        if self.reading.locked() or not replica.is_loaded or len(data) > _AT_ONCE_BYTES:
            return False
        try:
            epoch, first, texts = split_message(data)
            is_next = epoch == replica.epoch and first <= replica.applied + 1
            if not is_next or not 0 < len(texts) <= _AT_ONCE:
                return False
            entries = [self._codec.entry(offset, text) for offset, text in enumerate(texts, first)]
        except ValueError:
            return False
        for entry in entries:
            if entry.offset > replica.applied:
                self._apply(entry)
        return True

    async def apply_long(self, data: bytes) -> bool:
        """Apply the entries of a message in slices; False if the log has to be read."""
        replica = self.replica
        budget = TurnBudget(for_all=True)
        try:
            epoch, first, texts = split_message(data)
            # Without entries, they were too long for a message.
            if not texts or epoch != replica.epoch or first > replica.applied + 1:
                return False
            for offset, text in enumerate(texts, first):
                if offset > replica.applied:
                    entry = self._codec.entry(offset, text)
                    await budget.yield_if_spent()
                    # Fires of this process may have been applied meanwhile.
                    if epoch != replica.epoch or offset > replica.applied + 1:
                        return False
                    if offset > replica.applied:
                        self._apply(entry)
        except ValueError:
            return False
        return True

    async def apply_page(self, entries: Sequence[LogEntry]) -> None:
        """Apply entries that were read from the log, in slices."""
        budget = TurnBudget(for_all=True)
        for number, entry in enumerate(entries, start=1):
            if entry.offset > self.replica.applied:
                self._apply(entry)
            if number % _AT_ONCE == 0:
                await budget.yield_if_spent()

    def begin_append(self) -> None:
        """Note what entries end here until `end_append`: it is not known whose they are."""
        self._appending += 1

    def end_append(self) -> None:
        """Forget what entries of others have ended, unless another append is under way."""
        self._appending -= 1
        if not self._appending:
            self._early.clear()

    def apply_own(self, epoch: str, entries: Sequence[LogEntry]) -> list[Future[Ended]]:
        """Apply entries that this process has appended, now or in their turn.

        Returns for each a future of how many operations it ended. Many are applied when their
        message arrives, in slices.
        """
        futures = [self._future_of(epoch, entry) for entry in entries]
        replica = self.replica
        if epoch == replica.epoch:
            is_next = bool(entries) and replica.applied == entries[0].offset - 1
            if is_next and len(entries) <= _AT_ONCE:
                for entry in entries:
                    self._apply(entry)
            else:
                self.settle()
        elif epoch in {each.name for each in replica.epochs}:
            # It came late: the log may have lost it meanwhile. One that is new is read soon.
            self.end_lost()
            self.settle()
        for offset in list(self._own)[: len(self._own) - MAX_OWN]:
            # They are applied all the same, as those of other processes.
            self._end(offset)
        return futures

    def _future_of(self, epoch: str, entry: LogEntry) -> Future[Ended]:
        if entry.offset in self._own:
            # The log uses its offset again.
            self._lose(entry.offset)
        future: Future[Ended] = asyncio.get_running_loop().create_future()
        early = self._early.pop((epoch, entry.offset), None)
        if early is None:
            self._own[entry.offset] = _OwnEntry(epoch, entry.key, future)
        else:
            future.set_result(early)
        return future

    def _apply(self, entry: LogEntry) -> None:
        self.replica.apply(entry)
        self.applied += 1
        if self.propagation is None:
            ended = self._end_operations(entry)
        else:
            # Also if it has none: what is current here may be the request that had the log read.
            with self.propagation.restore(entry.traceparent):
                ended = self._end_operations(entry)
        own = self._own.pop(entry.offset, None)
        if own is not None:
            if not own.future.done():
                own.future.set_result(ended)
        elif self._appending:
            self._early[self.replica.epoch, entry.offset] = ended
            if len(self._early) > MAX_OWN:
                # Not by iter() of a dict, which passes over all that were removed.
                self._early.popitem(last=False)
        if self._behind:
            self._resume_behind()

    def _end_operations(self, entry: LogEntry) -> Ended:
        listener = self.listener
        assert listener is not None
        if entry.type is EntryType.UNREADABLE:
            return 0
        is_dropped = entry.type is EntryType.DROPPED
        return listener.cancel(entry.key) if is_dropped else listener.check(entry.key)

    async def reach(self, offset: int, timeout_s: float) -> bool:
        """Wait until the entry at `offset` was applied; False if it takes too long."""
        if self.replica.applied >= offset:
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
        return self.replica.applied >= offset

    def settle(self) -> None:
        """Resume the callers whose entries were applied."""
        applied = self.replica.applied
        for offset in [each for each in self._own if each <= applied]:
            self._end(offset)
        self._resume_behind()

    def give_up(self) -> None:
        """Resume all callers: this process waits for their entries no longer."""
        for offset in list(self._own):
            self._end(offset)
        self._resume_behind(are_all=True)

    def end_lost(self, *, is_new_log: bool = False) -> None:
        """Report the entries that the log has lost: they are acknowledged."""
        replica = self.replica
        names = {epoch.name for epoch in replica.epochs}
        for offset, own in list(self._own.items()):
            is_known = own.epoch in names
            if not is_known and is_new_log:
                # It was of the log before: every cursor of that is expired.
                self._end(offset)
            elif not is_known or replica.kept_before(own.epoch, offset) is not None:
                # An epoch that is not known is lost, too, and was never seen here.
                self._lose(offset)

    def begin_later(self) -> None:
        """Resume the callers that a later epoch leaves behind; offsets are others now."""
        self.settle()
        self._resume_behind(are_all=True)

    def _resume_behind(self, *, are_all: bool = False) -> None:
        applied = self.replica.applied
        if not are_all and applied < self._first_behind:
            return
        waiting, self._behind = self._behind, {}
        for future, offset in waiting.items():
            if not are_all and offset > applied:
                self._behind[future] = offset
            elif not future.done():
                future.set_result(None)
        self._first_behind = min(self._behind.values(), default=0)

    def _lose(self, offset: int) -> None:
        # Perhaps nobody has seen it: it may not even have been applied here.
        own = self._own[offset]
        self._report({own.key: f"{own.epoch}-{offset}"})
        self._end(offset)

    def _end(self, offset: int) -> None:
        future = self._own.pop(offset).future
        if not future.done():
            future.set_result(0)
