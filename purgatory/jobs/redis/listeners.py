"""Who hears of changes: those of this store object, and those of others."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from purgatory.jobs.redis.record import KEY_SEPARATOR, SEPARATOR
from purgatory.jobs.store import StoreListener


class RedisListeners:
    """The listeners of one store object, called on its event loop."""

    def __init__(self) -> None:
        # Tells our own messages from those of others.
        self.name = secrets.token_hex(8)
        # {listener: None}: order of arrival and O(1) removal.
        self._listeners: dict[StoreListener, None] = {}

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Tell `listener` from now on; return the function that ends it."""
        self._listeners[listener] = None
        return lambda: self._listeners.pop(listener, None)

    def tell(self, job_id: str | None, due_ms: int | None) -> None:
        """Tell that a job changed, and that something is due soon."""
        # A copy: a listener may end its subscription.
        for listener in list(self._listeners):
            if job_id is not None:
                listener.on_change(job_id)
            if due_ms is not None:
                listener.on_due(due_ms)

    def on_reply(self, soonest_ms: int | None, changes: list[str]) -> None:
        """Tell what a round trip of ours changed, as `RedisShard` says."""
        if soonest_ms is not None:
            self.tell(None, soonest_ms)
        for change in changes:
            job_id, _, due_ms = change.partition(SEPARATOR)
            self.tell(job_id, int(due_ms) if due_ms else None)

    def on_message(self, message: str) -> None:
        """Tell what another store object published: its name, the soonest due_ms, the changes."""
        parts = message.split(SEPARATOR, 2)
        if len(parts) != 3 or parts[0] == self.name:
            return
        _, soonest_ms, changes = parts
        if soonest_ms.isdecimal():
            self.tell(None, int(soonest_ms))
        for change in changes.split(KEY_SEPARATOR) if changes else ():
            self.tell(change.partition(SEPARATOR)[0], None)
