"""Where operations wait, watched by keys (Kafka: DelayedOperationPurgatory)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from purgatory.errors import PurgatoryClosedError
from purgatory.lifecycle import Listener, OperationEvent
from purgatory.operation import DelayedOperation
from purgatory.status import Status
from purgatory.timer import SystemTimer
from purgatory.walk import Walk
from purgatory.watchers import Watchers

logger = logging.getLogger("purgatory.watching")


@dataclass(frozen=True, slots=True)
class WatchStatistics:
    """Exact counts of what waits in a purgatory."""

    name: str
    delayed: int
    """Operations that wait."""
    watched: int
    """Watches: an operation counts once for each of its keys."""
    keys: int
    """Keys with at least one operation."""
    fired: int
    expired: int
    cancelled: int
    drained: int


class DelayedOperationPurgatory:
    """Keeps operations until they are completed: through a key, by their deadline, or by hand.

    Not bound to an event loop; all calls must come from one thread, and so do all callbacks. There
    are no locks, and no call waits. Callbacks may call back into the purgatory.

    Source: Kafka's `DelayedOperationPurgatory`. There is no purge: a completed operation leaves all
    its keys at once, a key without operations holds nothing, and every count is exact.
    """

    # Invariant: every operation in `_watchers` is pending, and stands there once for each key.
    __slots__ = (
        "_delayed",
        "_listeners",
        "_outcomes",
        "_watched",
        "_watchers",
        "checked_key",
        "is_closed",
        "name",
        "timer",
    )

    def __init__(
        self, name: str, timer: SystemTimer, *, listeners: Iterable[Listener] = ()
    ) -> None:
        """Make an empty purgatory whose deadlines are kept by `timer`, which may be shared."""
        self.name: str = name
        self.timer: SystemTimer = timer
        self.is_closed: bool = False
        # The key of the check under way, for operations that ask which one completed them.
        self.checked_key: Hashable | None = None
        self._listeners: tuple[Listener, ...] = tuple(listeners)
        # A key's only operation, or its Watchers.
        self._watchers: dict[Hashable, DelayedOperation | Watchers] = {}
        self._watched: int = 0
        self._delayed: int = 0
        self._outcomes: dict[Status, int] = dict.fromkeys(Status, 0)

    @property
    def watched(self) -> int:
        """How many watches there are: an operation counts once for each of its keys."""
        return self._watched

    @property
    def delayed(self) -> int:
        """How many operations wait."""
        return self._delayed

    def statistics(self) -> WatchStatistics:
        """Return the counts of now, and of the outcomes since the start."""
        return WatchStatistics(
            name=self.name,
            delayed=self._delayed,
            watched=self._watched,
            keys=len(self._watchers),
            fired=self._outcomes[Status.FIRED],
            expired=self._outcomes[Status.EXPIRED],
            cancelled=self._outcomes[Status.CANCELLED],
            drained=self._outcomes[Status.DRAINED],
        )

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable]
    ) -> bool:
        """Complete `operation` now, or watch every key until it is; True iff completed now.

        It is tried, put on every key, and tried again, so that an event during the watching is not
        lost; then its deadline starts. A key that is given twice counts once.

        Raises ValueError for no keys or an operation that is watched already, TypeError for a bare
        string, PurgatoryClosedError after `shutdown`, and whatever `try_complete` raises; then
        nothing is left behind.
        """
        if isinstance(keys, str):
            raise TypeError(f"keys is the string {keys!r}: give a list of keys, such as [{keys!r}]")
        unique_keys = tuple(dict.fromkeys(keys))
        if not unique_keys:
            raise ValueError("keys is empty: an operation watches at least one key")
        if self.is_closed:
            raise PurgatoryClosedError(f"purgatory {self.name!r} was shut down and takes no more")
        if operation._purgatory is not None:
            raise ValueError(f"{operation!r} is watched already: an operation is used once")
        if operation.try_complete():
            return True
        if operation.status is not Status.PENDING:
            return False
        self._watch(operation, unique_keys)
        try:
            if operation.try_complete():
                return True
            if operation.status is Status.PENDING:
                self.timer.add(operation)
                if self._listeners:
                    self._tell(operation, unique_keys)
        except BaseException:
            if operation.status is Status.PENDING:
                self._unwatch(operation)
            raise
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Try every operation on `key`, in order of arrival; return how many that completed."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return 0
        if isinstance(watchers, DelayedOperation):
            return self._check((watchers,), key)
        return self._check(tuple(watchers.operations), key)

    def check_in_steps(self, key: Hashable) -> Walk:
        """Return `check_and_complete(key)` to be taken in steps, for very many operations."""
        return Walk(self.watching(key), lambda operations: self._check(operations, key))

    def cancel_in_steps(self, key: Hashable) -> Walk:
        """Return `cancel_for_key(key)` to be taken in steps."""
        return Walk(
            self.watching(key), lambda operations: len(self._end(operations, Status.CANCELLED))
        )

    def shutdown_in_steps(self) -> Walk:
        """Take no more, and return the rest of `shutdown()` to be taken in steps."""
        self.is_closed = True
        return Walk(
            self.operations(), lambda operations: len(self._end(operations, Status.DRAINED))
        )

    def watching(self, key: Hashable) -> list[DelayedOperation]:
        """Return the operations on `key`, in order of arrival."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return []
        if isinstance(watchers, DelayedOperation):
            return [watchers]
        return list(watchers.operations)

    def count(self, key: Hashable) -> int:
        """Return how many operations watch `key`."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return 0
        return 1 if isinstance(watchers, DelayedOperation) else len(watchers)

    def keys(self) -> list[Hashable]:
        """Return the keys that are watched, in the order in which they came to be."""
        return list(self._watchers)

    def operations(self) -> list[DelayedOperation]:
        """Return every operation that waits, once, in no particular order."""
        found: dict[DelayedOperation, None] = {}
        for watchers in self._watchers.values():
            if isinstance(watchers, DelayedOperation):
                found[watchers] = None
            else:
                found.update(watchers.operations)
        return list(found)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Cancel every operation on `key`, which leaves its other keys too; return them."""
        return self._end(self.watching(key), Status.CANCELLED)

    def shutdown(self) -> list[DelayedOperation]:
        """Take no more, and end every operation with status "drained"; return them."""
        self.is_closed = True
        return self._end(self.operations(), Status.DRAINED)

    def _end(
        self, operations: Iterable[DelayedOperation], status: Status
    ) -> list[DelayedOperation]:
        """End those of `operations` that are pending with `status`; return them."""
        ended = []
        for operation in operations:
            if operation.is_completed:
                continue
            ended.append(operation)
            try:
                operation._cancel(status)
            except Exception:
                operation._log_failure("on_cancellation")
        return ended

    def _check(self, operations: Iterable[DelayedOperation], key: Hashable) -> int:
        """Try those of `operations` that are pending, on behalf of `key`; return how many ended.

        `operations` is a copy: completing one unwatches it, which edits what it was read from. An
        operation that raises stays as it is, and stops none of its neighbours.
        """
        outer_key, self.checked_key = self.checked_key, key
        completed = 0
        try:
            for operation in operations:
                if not operation.is_completed:
                    completed += self._try(operation)
        finally:
            self.checked_key = outer_key
        return completed

    def _try(self, operation: DelayedOperation) -> bool:
        try:
            operation.try_complete()
        except Exception:
            operation._log_failure("try_complete or on_complete")
        return operation.status is Status.FIRED

    def _watch(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        operation._purgatory = self
        operation._keys = keys
        watchers = self._watchers
        for key in keys:
            present = watchers.setdefault(key, operation)
            if present is operation:
                continue
            if isinstance(present, Watchers):
                present.operations[operation] = None
            else:
                watchers[key] = Watchers(present, operation)
        self._watched += len(keys)
        self._delayed += 1

    def _unwatch(self, operation: DelayedOperation) -> tuple[Hashable, ...]:
        """Take `operation` off every key; return the keys."""
        keys = operation._keys
        operation._keys = ()
        operation._purgatory = None
        watchers = self._watchers
        for key in keys:
            present = watchers[key]
            if present is operation:
                del watchers[key]
                continue
            assert isinstance(present, Watchers)
            del present.operations[operation]
            if not present.operations:
                del watchers[key]
        self._watched -= len(keys)
        self._delayed -= 1
        return keys

    def _on_settled(self, operation: DelayedOperation) -> None:
        """Forget `operation`, whose status says how it ended."""
        keys = self._unwatch(operation)
        self._outcomes[operation.status] += 1
        if self._listeners:
            self._tell(operation, keys)

    def _tell(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        event = OperationEvent(
            operation=operation,
            status=operation.status,
            keys=keys,
            key=self.checked_key if operation.status is Status.FIRED else None,
            at_ms=self.timer.now_ms(),
            deadline_ms=operation.expiration_ms,
        )
        for listener in self._listeners:
            self._tell_one(listener, event)

    def _tell_one(self, listener: Callable[[OperationEvent], None], event: OperationEvent) -> None:
        try:
            listener(event)
        except Exception:
            logger.exception(
                "listener %r failed", listener, extra={"action": "operation-listener-failed"}
            )
