"""An operation that waits for an event or its deadline (Kafka: DelayedOperation)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextvars import Context
from typing import Any

from purgatory.operations.operation_owner import OperationOwner
from purgatory.outcome import Status
from purgatory.timer import compiled
from purgatory.timer.task import MAX_DELAY_MS, NOT_SCHEDULED, TimerTask, raise_invalid_delay

logger = logging.getLogger("purgatory.operation")

# On the hot path, an enumeration's attribute costs more than a global name.
_PENDING = Status.PENDING
_FIRED = Status.FIRED
_EXPIRED = Status.EXPIRED


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
    _purgatory: OperationOwner | None
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
