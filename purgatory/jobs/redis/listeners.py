"""Who hears of changes: those of this store object, and those of others."""

from __future__ import annotations

import secrets

from purgatory.jobs.redis.record import KEY_SEPARATOR, SEPARATOR
from purgatory.jobs.stores.listeners import StoreListeners


class RedisListeners(StoreListeners):
    """Tells what replies and messages of the server say."""

    def __init__(self) -> None:
        super().__init__()
        # Tells our own messages from those of others.
        self.name = secrets.token_hex(8)

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
