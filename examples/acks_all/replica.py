"""The leader's view of one follower."""

from __future__ import annotations

UNKNOWN_OFFSET = -1


class Replica:
    """A follower's progress, as its fetches show it (Kafka: Replica)."""

    __slots__ = (
        "_last_fetch_end_offset",
        "_last_fetch_ms",
        "last_caught_up_ms",
        "log_end_offset",
        "replica_id",
    )

    def __init__(self, replica_id: int, now_ms: int) -> None:
        """Start with a follower that has not fetched yet."""
        self.replica_id: int = replica_id
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        """Reset its progress at the start of an epoch."""
        self.log_end_offset: int = UNKNOWN_OFFSET
        self.last_caught_up_ms: int = now_ms
        self._last_fetch_ms: int = now_ms
        self._last_fetch_end_offset: int = UNKNOWN_OFFSET

    def fetch(self, offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Record a fetch from `offset`: the follower has everything before it.

        It has caught up now if `offset` is the end of the log. It had caught up at its last fetch
        if `offset` was the end of the log then: so a follower keeps up with a growing log.
        """
        if offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif self._last_fetch_end_offset != UNKNOWN_OFFSET and (
            offset >= self._last_fetch_end_offset
        ):
            self.last_caught_up_ms = self._last_fetch_ms
        self.log_end_offset = offset
        self._last_fetch_ms = now_ms
        self._last_fetch_end_offset = leader_end_offset

    def is_behind(self, leader_end_offset: int) -> bool:
        """True iff there are records that it has not fetched."""
        return self.log_end_offset < leader_end_offset

    def is_lagging(self, leader_end_offset: int, now_ms: int, replica_lag_ms: int) -> bool:
        """True iff it has been behind for `replica_lag_ms`."""
        return (
            self.is_behind(leader_end_offset) and now_ms - self.last_caught_up_ms >= replica_lag_ms
        )
