"""What a leader knows of one follower."""

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
        """Begin with a follower of which nothing has been heard."""
        self.replica_id: int = replica_id
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        """Forget its progress: another epoch begins, in which it has yet to fetch."""
        self.log_end_offset: int = UNKNOWN_OFFSET
        self.last_caught_up_ms: int = now_ms
        self._last_fetch_ms: int = now_ms
        self._last_fetch_end_offset: int = UNKNOWN_OFFSET

    def fetch(self, offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Take note that it has everything before `offset`, which it asks for.

        It has caught up now if that is the end of the log; and as of its last fetch if that is
        what was the end of the log then, which is how a follower keeps up with a log that grows.
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
        """True iff it is behind, and has been for `replica_lag_ms`."""
        return (
            self.is_behind(leader_end_offset) and now_ms - self.last_caught_up_ms >= replica_lag_ms
        )
