"""Operations that wait for an event or a deadline, and the purgatory that has them by key.

Kafka: DelayedOperation and DelayedOperationPurgatory. In one module, since each needs the other,
and compiled classes of two modules cannot import each other.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, Final

from purgatory.errors import PurgatoryClosedError, name_of
from purgatory.operations.operation_listeners import Listener, Record, Recorder, record_of
from purgatory.operations.resumable_batch import ResumableBatch
from purgatory.operations.watch_key import watch_bytes
from purgatory.outcome import Status
from purgatory.timer import compiled
from purgatory.timer.system_timer import SystemTimer
from purgatory.timer.task import MAX_DELAY_MS, NOT_SCHEDULED, TimerTask, raise_invalid_delay

logger = logging.getLogger("purgatory.operation")
watching_logger = logging.getLogger("purgatory.watching")

# On the hot path, an enumeration's attribute costs more than a global name.
_PENDING = Status.PENDING
_FIRED = Status.FIRED
_EXPIRED = Status.EXPIRED
_NO_LIMIT: Final = sys.maxsize

UNTRIED: Final = -1


class DelayedOperation(TimerTask):
    """Work that is done once: when its condition holds, or when `delay_ms` has passed.

    Subclasses define `try_complete` and `on_complete`, and may define `on_expiration` and
    `on_cancellation`. All are called on the purgatory's thread, and may call back into it; once it
    is parked by a `Purgatory`, in a copy of the context (`contextvars`) that was current then.

    Whatever ends an operation, its `status` is set first; then it leaves the timer and every key;
    then it is called back. So `on_complete` or `on_cancellation` is called exactly once, and no
    callback ever sees an operation that is still watched.

    Source: Kafka's `DelayedOperation`. Kafka leaves a completed operation on its other keys until a
    purge; here it leaves them at once (KAFKA-19389, KAFKA-19763).
    """

    __slots__ = ("_keys", "_parked_in", "_purgatory", "status")

    status: Status
    _keys: tuple[Hashable, ...]
    _purgatory: DelayedOperationPurgatory | None
    # The context for its callbacks while it waits, which is copied for each of them: it may be that
    # of a task, or of many operations. None while one runs, which is in it already, and if they are
    # to run in that of the caller.
    _parked_in: Context | None

    def __init__(self, delay_ms: int) -> None:
        """Create an operation that expires `delay_ms` whole milliseconds after it is watched."""
        # TimerTask.__init__, inlined: a second call is a third of the cost in plain Python.
        if type(delay_ms) is not int or delay_ms > MAX_DELAY_MS:
            raise_invalid_delay(delay_ms)
        self.delay_ms = delay_ms
        self.expiration_ms = NOT_SCHEDULED
        self._array = None
        self.status = _PENDING
        self._keys = ()
        self._purgatory = None
        self._parked_in = None

    @property
    def is_completed(self) -> bool:
        """True iff the operation has ended, in whichever way."""
        return self.status is not _PENDING

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The keys that the operation watches; empty before it is watched and after it ended."""
        return self._keys

    def try_complete(self) -> bool:
        """Call `force_complete` if the condition holds; return True iff that completed it.

        Called when the operation is given to a purgatory, again once it watches its keys, and
        whenever one of them is checked: what it raises then is logged by the purgatory, and the
        operation goes on waiting.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define try_complete()")

    def on_complete(self) -> None:
        """Do the work: called once, when the operation has fired or expired."""
        raise NotImplementedError(f"{type(self).__name__} does not define on_complete()")

    def on_expiration(self) -> None:
        """Called once, after `on_complete`, if the deadline completed the operation."""

    def on_cancellation(self) -> None:
        """Called once, instead of `on_complete`, if the operation was cancelled or drained."""

    def force_complete(self) -> bool:
        """Complete the operation unless it already is; return True iff this call did it."""
        if self._parked_in is not None:
            return self._end_in_own_context(_FIRED)
        if not self._settle(_FIRED):
            return False
        if compiled:
            self._complete()
        else:
            self.on_complete()
        return True

    def cancel(self) -> bool:
        """Cancel the operation unless it already ended; return True iff this call did it."""
        return self._cancel(Status.CANCELLED)

    def abandon(self) -> bool:
        """Cancel the operation because its caller has gone; return True iff this call did it."""
        return self.cancel()

    def run(self) -> None:
        """Expire: the timer calls this at the deadline."""
        if self._parked_in is not None:
            self._end_in_own_context(_EXPIRED)
            return
        if not self._settle(_EXPIRED):
            return
        try:
            self.on_complete()
        except Exception:
            self._log_failure("on_complete")
        if self.status is _EXPIRED:
            self.on_expiration()

    # The compiled form calls these instead: a compiled subclass overrides them, which avoids the
    # calls through Python.

    def _try(self) -> bool:
        return self.try_complete()

    def _complete(self) -> None:
        self.on_complete()

    def _cancel(self, status: Status) -> bool:
        if self._parked_in is not None:
            return self._end_in_own_context(status)
        if not self._settle(status):
            return False
        self.on_cancellation()
        return True

    def _settle(self, status: Status) -> bool:
        """Set the outcome, leave the timer, leave every key; False iff it had ended already."""
        if self.status is not _PENDING:
            return False
        self.status = status
        array = self._array
        if array is not None:
            array.remove(self)
        purgatory = self._purgatory
        if purgatory is not None:
            purgatory._unwatch(self)
        return True

    def _end_in_own_context(self, status: Status) -> bool:
        owner = self._purgatory
        if not compiled or (owner is not None and owner.keeps_ended_in):
            return bool(self._in_own_context(self._end_as, status))
        # The same, without calls through Python, which are a sixth of parking and completing.
        context, self._parked_in = self._parked_in, None
        entered = enter_copy(context)  # type: ignore[name-defined] # noqa: F821 - in c_context.pxd
        try:
            return self._end_as(status)
        finally:
            context_exit(entered)  # type: ignore[name-defined] # noqa: F821 - as above
            if self.status is _PENDING:
                self._parked_in = context

    def _end_as(self, status: Status) -> bool:
        if status is _FIRED:
            return self.force_complete()
        if status is _EXPIRED:
            self.run()
            return True
        return self._cancel(status)

    def _in_own_context(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return `function(*arguments)`, called in a copy of the context of the parking."""
        context, owner = self._parked_in, self._purgatory
        assert context is not None
        self._parked_in = None
        try:
            if owner is not None and owner.keeps_ended_in:
                return owner._enter(context, function, arguments)
            return context.copy().run(function, *arguments)
        finally:
            # Released with the operation's end: its variables may refer to the operation.
            if self.status is _PENDING:
                self._parked_in = context

    def _listener_context(self) -> Context | None:
        """Return the context for listeners, unless it is current."""
        return None

    def _log_failure(self, callback: str) -> None:
        logger.exception(
            "%s of %r failed", callback, self, extra={"action": "operation-callback-failed"}
        )


class Watchers:
    """Two or more operations on one key, in order of arrival (Kafka: Watchers).

    A key's only operation is in the purgatory's dict itself: most keys have one watcher, and a dict
    with one entry takes 232 bytes.
    """

    # {operation: None}: order of arrival and O(1) removal, which a deque lacks.
    __slots__ = ("operations",)

    operations: dict[DelayedOperation, None]

    def __init__(self, first: DelayedOperation, second: DelayedOperation) -> None:
        """Create watchers of two operations, in order of arrival."""
        self.operations = {first: None, second: None}

    def __len__(self) -> int:
        """Return how many operations watch the key."""
        return len(self.operations)


@dataclass(frozen=True, slots=True)
class WatchStatistics:
    """Exact counts of one purgatory: waiting operations, and outcomes since its start."""

    name: str
    delayed: int
    """Waiting operations."""
    watched: int
    """Watches: an operation counts once for each of its keys."""
    bytes: int
    """About the memory that the keys of operations with several keys take."""
    keys: int
    """Keys with at least one operation."""
    fired: int
    expired: int
    cancelled: int
    drained: int
    outdated: int


class DelayedOperationPurgatory:
    """Holds operations until they complete: by a check of a key, a deadline or `force_complete`.

    Not bound to an event loop. All calls must come from one thread, which also runs all callbacks;
    there are no locks, and no call blocks. Callbacks may call back into the purgatory.

    Source: Kafka's `DelayedOperationPurgatory`. There is no purge: a completed operation leaves all
    its keys at once, a key without operations holds nothing, and every count is exact.
    """

    # Invariant: every operation in `_watchers` is pending, and is there once for each of its keys.
    # And _bytes is the sum of watch_bytes(keys) of those operations that have several keys.
    __slots__ = (
        "_bytes",
        "_delayed",
        "_fired",
        "_listeners",
        "_outcomes",
        "_watched",
        "_watchers",
        "current_key",
        "ended_in",
        "is_closed",
        "keeps_ended_in",
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
        """Create an empty purgatory; deadlines run on `timer`, which may be shared."""
        self.name: str = name
        self.timer: SystemTimer = timer
        self.is_closed: bool = False
        # The key that is being checked, from which an operation reads what completed it.
        self.current_key: Hashable | None = None
        # The context of the caller that ends an operation, which runs in its own: for listeners.
        # Kept only if one of them needs it.
        self.ended_in: Context | None = None
        self.keeps_ended_in: bool = False
        self._listeners: tuple[Record, ...] = tuple(
            record_of(listener, timer) for listener in listeners
        )
        # A key's only operation, or its Watchers.
        self._watchers: dict[Hashable, DelayedOperation | Watchers] = {}
        self._watched: int = 0
        self._bytes: int = 0
        self._delayed: int = 0
        # Outcomes other than fired, which has its own count: that takes a third of the time.
        self._outcomes: dict[Status, int] = dict.fromkeys(Status, 0)
        self._fired: int = 0

    @property
    def watched(self) -> int:
        """The number of watches: an operation counts once for each of its keys."""
        return self._watched

    @property
    def delayed(self) -> int:
        """The number of waiting operations."""
        return self._delayed

    def add_listener(self, listener: Listener | Recorder) -> None:
        """Add `listener`; for operations that already wait, it is called at their end only."""
        self._listeners = (*self._listeners, record_of(listener, self.timer))

    def remove_listener(self, recorder: Recorder) -> None:
        """Remove a recorder that was added."""
        self._listeners = tuple(each for each in self._listeners if each != recorder.record)

    def statistics(self) -> WatchStatistics:
        """Return the current counts, and the outcomes since the start."""
        return WatchStatistics(
            name=self.name,
            delayed=self._delayed,
            watched=self._watched,
            bytes=self._bytes,
            keys=len(self._watchers),
            fired=self._fired,
            expired=self._outcomes[Status.EXPIRED],
            cancelled=self._outcomes[Status.CANCELLED],
            drained=self._outcomes[Status.DRAINED],
            outdated=self._outcomes[Status.OUTDATED],
        )

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable]
    ) -> bool:
        """Complete `operation` now, or watch every key until it completes; True iff completed now.

        It is tried, added to every key, and tried again, so that no event in between is lost; then
        its deadline starts. A key that is given twice counts once.

        Raises ValueError if `keys` is empty or the operation is watched already, TypeError for a
        bare string, PurgatoryClosedError after `shutdown`, and what `try_complete` raises; then
        nothing stays watched.
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
            raise PurgatoryClosedError(
                f"purgatory {self.name!r} was shut down and accepts no more operations"
            )
        if len(keys) == 1:
            # _watch, inlined for the usual case: in plain Python its call is 7 % of an operation.
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
                    self._notify_listeners(operation, operation._keys)
        except BaseException:
            if operation.status is _PENDING:
                if operation._array is not None:
                    operation._array.remove(operation)
                self._unwatch(operation)
            raise
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Try every operation on `key`, in order of arrival; return how many this completed."""
        return self.check_up_to(key, _NO_LIMIT)

    def check_up_to(self, key: Hashable, limit: int) -> int:
        """Return `check_and_complete(key)`; UNTRIED, and try none, if more than `limit` wait."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return 0
        if not isinstance(watchers, Watchers):
            return 1 if self._check(watchers, key) else 0
        if len(watchers) > limit:
            return UNTRIED
        return self.check_batch(key).finish()

    def check_batch(self, key: Hashable) -> ResumableBatch:
        """Return `check_and_complete(key)` as a batch, for very many operations."""
        return ResumableBatch(self.watching(key), lambda operation: self._check(operation, key))

    def cancel_batch(self, key: Hashable) -> ResumableBatch:
        """Return `cancel_for_key(key)` as a batch."""
        return ResumableBatch(
            self.watching(key), lambda operation: self._end(operation, Status.CANCELLED)
        )

    def shutdown_batch(self) -> ResumableBatch:
        """Accept no more operations; return the rest of `shutdown()` as a batch."""
        self.is_closed = True
        return ResumableBatch(
            self.operations(), lambda operation: self._end(operation, Status.DRAINED)
        )

    def watching(self, key: Hashable) -> list[DelayedOperation]:
        """Return the operations on `key`, in order of arrival."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return []
        if not isinstance(watchers, Watchers):
            return [watchers]
        return list(watchers.operations)

    def first(self, key: Hashable) -> DelayedOperation | None:
        """Return the operation that has waited longest on `key`, or None. O(1)."""
        watchers = self._watchers.get(key)
        if isinstance(watchers, Watchers):
            return next(iter(watchers.operations))
        return watchers

    def count(self, key: Hashable) -> int:
        """Return how many operations watch `key`."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return 0
        return 1 if not isinstance(watchers, Watchers) else len(watchers)

    def keys(self) -> list[Hashable]:
        """Return the keys that are watched, in the order of their first watch."""
        return list(self._watchers)

    def operations(self) -> list[DelayedOperation]:
        """Return every waiting operation, once, in no particular order."""
        found: dict[DelayedOperation, None] = {}
        for watchers in self._watchers.values():
            if not isinstance(watchers, Watchers):
                found[watchers] = None
            else:
                found.update(watchers.operations)
        return list(found)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """Cancel every operation on `key`, also on its other keys; return them."""
        return self._end_all(self.watching(key), Status.CANCELLED)

    def shutdown(self) -> list[DelayedOperation]:
        """Accept no more operations, and end all with status "drained"; return them."""
        self.is_closed = True
        return self._end_all(self.operations(), Status.DRAINED)

    def _end_all(
        self, operations: list[DelayedOperation], status: Status
    ) -> list[DelayedOperation]:
        ended: list[DelayedOperation] = []

        def end(operation: DelayedOperation) -> bool:
            ended.append(operation)
            return self._end(operation, status)

        ResumableBatch(operations, end).finish()
        return ended

    def _end(self, operation: DelayedOperation, status: Status) -> bool:
        """Cancel one pending operation with `status`; its failure is logged."""
        if operation._parked_in is not None:
            return bool(operation._in_own_context(self._end, operation, status))
        try:
            return operation._cancel(status)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            # CancelledError, too: it comes from a future that the callback read.
            operation._log_failure("on_cancellation")
            return True

    def _check(self, operation: DelayedOperation, key: Hashable) -> bool:
        """Try one operation because of `key`; return True iff it fired. Its failure is logged."""
        context = operation._parked_in
        if context is not None:
            if self.keeps_ended_in:
                return bool(operation._in_own_context(self._check, operation, key))
            # The same, inlined: the call is 2 % of parking and firing an operation of your own.
            operation._parked_in = None
            entered: Any = None
            try:
                if not compiled:
                    return context.copy().run(self._check, operation, key)
                entered = enter_copy(context)  # type: ignore[name-defined] # noqa: F821 - c_context.pxd
                return self._check(operation, key)
            finally:
                if entered is not None:
                    context_exit(entered)  # type: ignore[name-defined] # noqa: F821 - as above
                if operation.status is _PENDING:
                    operation._parked_in = context
        outer_key, self.current_key = self.current_key, key
        try:
            if compiled:
                operation._try()
            else:
                operation.try_complete()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            # As in `_end`.
            operation._log_failure("try_complete or on_complete")
        finally:
            self.current_key = outer_key
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
            # A key that cannot be hashed: undo the watches before it.
            operation._keys = tuple(dict.fromkeys(keys[: keys.index(key)]))
            self._count(operation)
            self._unwatch(operation)
            raise
        if count != len(keys):
            # A key given twice counts once. Rare, so it is not checked for every call beforehand.
            operation._keys = tuple(dict.fromkeys(keys))
        self._count(operation)

    def _count(self, operation: DelayedOperation) -> None:
        """Count the watches of an operation that was given several keys."""
        keys = operation._keys
        self._watched += len(keys)
        if len(keys) > 1:
            self._bytes += watch_bytes(keys)

    def _watch_key(self, operation: DelayedOperation, key: Hashable) -> int:
        """Add `operation` to `key`; return 1, or 0 if it was there already."""
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
        # A second name, whose type the compiled form knows.
        group = present
        operations = group.operations
        count = len(operations)
        operations[operation] = None
        return len(operations) - count

    def _unwatch(self, operation: DelayedOperation) -> None:
        """Remove `operation` from every key, and count its outcome if it has one."""
        keys = operation._keys
        operation._keys = ()
        operation._purgatory = None
        watchers = self._watchers
        for key in keys:
            present = watchers[key]
            if present is operation:
                del watchers[key]
                continue
            # Not the key's only operation, so these are Watchers.
            group: Watchers = present  # type: ignore[assignment] # see above
            operations = group.operations
            del operations[operation]
            if not operations:
                del watchers[key]
        count = len(keys)
        self._watched -= count
        if count > 1:
            self._bytes -= watch_bytes(keys)
        self._delayed -= 1
        status = operation.status
        if status is _FIRED:
            self._fired += 1
        elif status is _PENDING:
            # It could not be watched: it has no outcome, and no listener knows it.
            return
        else:
            self._outcomes[status] += 1
        # Without an expiration it completed while it was added to its keys: no listener knows it.
        if self._listeners and operation.expiration_ms != NOT_SCHEDULED:
            context = operation._listener_context()
            if context is None:
                self._notify_listeners(operation, keys)
            else:
                self._notify_listeners_in(context, operation, keys)

    def _enter(
        self, context: Context, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        """Return `function(*arguments)`, called in a copy of `context`, with `ended_in` set."""
        outer, self.ended_in = self.ended_in, copy_context()
        try:
            return context.copy().run(function, *arguments)
        finally:
            self.ended_in = outer

    def _notify_listeners_in(
        self, context: Context, operation: DelayedOperation, keys: tuple[Hashable, ...]
    ) -> None:
        if self.keeps_ended_in:
            self._enter(context, self._notify_listeners, (operation, keys))
        else:
            context.copy().run(self._notify_listeners, operation, keys)

    def _notify_listeners(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        status = operation.status
        key = None
        # None if another operation's callback completed it.
        if status is _FIRED and self.current_key in keys:
            key = self.current_key
        for record in self._listeners:
            try:
                record(operation, status, keys, key, operation.expiration_ms)
            except Exception:
                watching_logger.exception(
                    "listener %s failed",
                    name_of(record),
                    extra={"action": "operation-listener-failed"},
                )
