"""Where operations wait, watched by keys (Kafka: DelayedOperationPurgatory)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from purgatory.errors import PurgatoryClosedError
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.operations.listeners import Listener, Record, Recorder, record_of
from purgatory.operations.operation_owner import OperationOwner
from purgatory.operations.resumable_batch import ResumableBatch
from purgatory.operations.watchers import Watchers
from purgatory.status import Status
from purgatory.timer import compiled
from purgatory.timer.system_timer import SystemTimer
from purgatory.timer.task import NOT_SCHEDULED

logger = logging.getLogger("purgatory.watching")

# Looked up once: an attribute of an enumeration costs more than a global name, on the hot path.
_PENDING = Status.PENDING
_FIRED = Status.FIRED
_NO_LIMIT: Final = sys.maxsize

UNTRIED: Final = -1


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


class DelayedOperationPurgatory(OperationOwner):
    """Keeps operations until they are completed: through a key, by their deadline, or by hand.

    Not bound to an event loop; all calls must come from one thread, and so do all callbacks. There
    are no locks, and no call waits. Callbacks may call back into the purgatory.

    Source: Kafka's `DelayedOperationPurgatory`. There is no purge: a completed operation leaves all
    its keys at once, a key without operations holds nothing, and every count is exact.
    """

    # Invariant: every operation in `_watchers` is pending, and stands there once for each key.
    __slots__ = (
        "_delayed",
        "_fired",
        "_listeners",
        "_outcomes",
        "_watched",
        "_watchers",
        "is_closed",
        "name",
        "timer",
    )

    def __init__(
        self,
        name: str,
        timer: SystemTimer,
        *,
        listeners: Iterable[Listener | Recorder] = (),
    ) -> None:
        """Make an empty purgatory whose deadlines are kept by `timer`, which may be shared."""
        self.name: str = name
        self.timer: SystemTimer = timer
        self.is_closed: bool = False
        self.checked_key = None
        self._listeners: tuple[Record, ...] = tuple(
            record_of(listener, timer) for listener in listeners
        )
        # A key's only operation, or its Watchers.
        self._watchers: dict[Hashable, DelayedOperation | Watchers] = {}
        self._watched: int = 0
        self._delayed: int = 0
        # The outcomes other than fired, which has a count of its own: a third of the time.
        self._outcomes: dict[Status, int] = dict.fromkeys(Status, 0)
        self._fired: int = 0

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
            fired=self._fired,
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
        if type(keys) is not tuple or not keys:
            keys = self._checked(keys)
        if operation._purgatory is not None:
            raise ValueError(f"{operation!r} is watched already: an operation is used once")
        if not self.is_closed and (operation._try() if compiled else operation.try_complete()):
            return True
        if operation.status is not _PENDING:
            return False
        # After the first try, which may have called anything.
        if self.is_closed:
            raise PurgatoryClosedError(f"purgatory {self.name!r} was shut down and takes no more")
        if len(keys) == 1:
            # _watch, written out for the usual case.
            key = keys[0]
            if self._watchers.setdefault(key, operation) is not operation:
                self._watch_key(operation, key)
            operation._purgatory = self
            operation._keys = keys
            self._delayed += 1
            self._watched += 1
        else:
            self._watch(operation, keys)
        try:
            if operation._try() if compiled else operation.try_complete():
                return True
            if operation.status is _PENDING:
                self.timer.add(operation)
                if self._listeners:
                    self._tell(operation, operation._keys)
        except BaseException:
            if operation.status is _PENDING:
                if operation._array is not None:
                    operation._array.remove(operation)
                self._leave(operation)
            raise
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Try every operation on `key`, in order of arrival; return how many that completed."""
        return self.check_few(key, _NO_LIMIT)

    def check_few(self, key: Hashable, most: int) -> int:
        """Do `check_and_complete(key)`, or nothing and return UNTRIED for more than `most`."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return 0
        if not isinstance(watchers, Watchers):
            return 1 if self._check(watchers, key) else 0
        if len(watchers) > most:
            return UNTRIED
        return self.check_in_steps(key).take()

    def check_in_steps(self, key: Hashable) -> ResumableBatch:
        """Return `check_and_complete(key)` to be taken in steps, for very many operations."""
        return ResumableBatch(self.watching(key), lambda operation: self._check(operation, key))

    def cancel_in_steps(self, key: Hashable) -> ResumableBatch:
        """Return `cancel_for_key(key)` to be taken in steps."""
        return self._walk_ending(self.watching(key), Status.CANCELLED)

    def shutdown_in_steps(self) -> ResumableBatch:
        """Take no more, and return the rest of `shutdown()` to be taken in steps."""
        self.is_closed = True
        return self._walk_ending(self.operations(), Status.DRAINED)

    def watching(self, key: Hashable) -> list[DelayedOperation]:
        """Return the operations on `key`, in order of arrival."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return []
        if not isinstance(watchers, Watchers):
            return [watchers]
        return list(watchers.operations)

    def count(self, key: Hashable) -> int:
        """Return how many operations watch `key`."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return 0
        return 1 if not isinstance(watchers, Watchers) else len(watchers)

    def keys(self) -> list[Hashable]:
        """Return the keys that are watched, in the order in which they came to be."""
        return list(self._watchers)

    def operations(self) -> list[DelayedOperation]:
        """Return every operation that waits, once, in no particular order."""
        found: dict[DelayedOperation, None] = {}
        for watchers in self._watchers.values():
            if not isinstance(watchers, Watchers):
                found[watchers] = None
            else:
                found.update(watchers.operations)
        return list(found)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Cancel every operation on `key`, which leaves its other keys too; return them."""
        return self._end_all(self.watching(key), Status.CANCELLED)

    def shutdown(self) -> list[DelayedOperation]:
        """Take no more, and end every operation with status "drained"; return them."""
        self.is_closed = True
        return self._end_all(self.operations(), Status.DRAINED)

    def _end_all(
        self, operations: list[DelayedOperation], status: Status
    ) -> list[DelayedOperation]:
        ended: list[DelayedOperation] = []

        def end(operation: DelayedOperation) -> bool:
            ended.append(operation)
            return self._end(operation, status)

        ResumableBatch(operations, end).take()
        return ended

    def _walk_ending(self, operations: list[DelayedOperation], status: Status) -> ResumableBatch:
        return ResumableBatch(operations, lambda operation: self._end(operation, status))

    def _end(self, operation: DelayedOperation, status: Status) -> bool:
        """End one operation that is pending with `status`; its failure is logged."""
        try:
            return operation._cancel(status)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            # A CancelledError too: it is that of a future which the callback looked at.
            operation._log_failure("on_cancellation")
            return True

    def _check(self, operation: DelayedOperation, key: Hashable) -> bool:
        """Try one operation on behalf of `key`; return True iff it fired. Its failure is logged."""
        outer_key, self.checked_key = self.checked_key, key
        try:
            if compiled:
                operation._try()
            else:
                operation.try_complete()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            # A CancelledError too: it is that of a future which the callback looked at.
            operation._log_failure("try_complete or on_complete")
        finally:
            self.checked_key = outer_key
        return operation.status is _FIRED

    def _checked(self, keys: Iterable[Hashable]) -> tuple[Hashable, ...]:
        if isinstance(keys, str):
            raise TypeError(f"keys is the string {keys!r}: give a list of keys, such as [{keys!r}]")
        given = tuple(keys)
        if not given:
            raise ValueError("keys is empty: an operation watches at least one key")
        return given

    def _watch(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        operation._purgatory = self
        operation._keys = keys
        self._delayed += 1
        count = 0
        try:
            for key in keys:
                count += self._watch_key(operation, key)
        except TypeError:
            # A key that cannot be hashed: off those before it.
            operation._keys = tuple(dict.fromkeys(keys[: keys.index(key)]))
            self._watched += len(operation._keys)
            self._leave(operation)
            raise
        if count != len(keys):
            # A key given twice counts once. Rare: so the check is not made for everyone beforehand.
            operation._keys = tuple(dict.fromkeys(keys))
        self._watched += count

    def _watch_key(self, operation: DelayedOperation, key: Hashable) -> int:
        """Put `operation` on `key`; return 1, or 0 where it was on it already."""
        watchers = self._watchers
        present = watchers.get(key)
        if present is None:
            watchers[key] = operation
            return 1
        if present is operation:
            return 0
        if not isinstance(present, Watchers):
            watchers[key] = Watchers(present, operation)
            return 1
        # A name of its own, of which the compiled form knows the type.
        group = present
        operations = group.operations
        count = len(operations)
        operations[operation] = None
        return len(operations) - count

    def _leave(self, operation: DelayedOperation) -> None:
        """Take `operation` off every key, and count how it ended, if its status says that."""
        # A second name, of which the compiled form knows the type; the parameter's is Keeper's.
        leaving = operation
        keys = leaving._keys
        leaving._keys = ()
        leaving._purgatory = None
        watchers = self._watchers
        for key in keys:
            present = watchers[key]
            if present is leaving:
                del watchers[key]
                continue
            # Not the only one, so there are Watchers.
            group: Watchers = present  # type: ignore[assignment] # see above
            operations = group.operations
            del operations[leaving]
            if not operations:
                del watchers[key]
        self._watched -= len(keys)
        self._delayed -= 1
        status = leaving.status
        if status is _FIRED:
            self._fired += 1
        elif status is _PENDING:
            # It could not be watched: nothing became of it, and nobody was told of it.
            return
        else:
            self._outcomes[status] += 1
        # Of an operation that completed while it was put on its keys nobody was told before.
        if self._listeners and leaving.expiration_ms != NOT_SCHEDULED:
            self._tell(leaving, keys)

    def _tell(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        status = operation.status
        key = None
        # What a neighbour's callback completed was completed by no key.
        if status is _FIRED and self.checked_key in keys:
            key = self.checked_key
        for record in self._listeners:
            try:
                record(operation, status, keys, key, operation.expiration_ms)
            except Exception:
                logger.exception(
                    "listener %r failed", record, extra={"action": "operation-listener-failed"}
                )
