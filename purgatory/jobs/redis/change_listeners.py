"""The listeners of a store in Redis, notified by its replies and messages."""

from __future__ import annotations

import re
import secrets

from purgatory.jobs.redis.record import KEY_SEPARATOR, SEPARATOR
from purgatory.jobs.stores.store_listeners import StoreListeners

_TIME = re.compile(r"[0-9]{1,15}", re.ASCII)


class ChangeListeners(StoreListeners):
    """Notifies of changes made by this store object and by others."""

    def __init__(self) -> None:
        super().__init__()
        # Distinguishes our own messages from those of others.
        self.name = secrets.token_hex(8)

    def on_reply(self, soonest_ms: int | None, changes: list[str]) -> None:
        """Notify of the changes of a round trip, as described in `RedisShard`."""
        if soonest_ms is not None:
            self.notify(None, soonest_ms)
        for change in changes:
            job_id, _, due_ms = change.partition(SEPARATOR)
            self.notify(job_id, int(due_ms) if due_ms else None)

    def on_message(self, message: str) -> None:
        """Notify of what another store object published: its name, the soonest due_ms, changes."""
        parts = message.split(SEPARATOR, 2)
        if len(parts) != 3 or parts[0] == self.name:
            return
        _, soonest_ms, changes = parts
        if _TIME.fullmatch(soonest_ms):
            self.notify(None, int(soonest_ms))
        for change in changes.split(KEY_SEPARATOR) if changes else ():
            self.notify(change.partition(SEPARATOR)[0], None)
