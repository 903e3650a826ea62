"""A lease as its holder sees it, and the owner that others see."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from purgatory.timer import Clock
from purgatory.timer.clock import NS_PER_MS

_NS_PER_SECOND = 1_000 * NS_PER_MS
# Of a lease. Two clocks may differ by as much in speed.
_MARGIN = 0.1


@dataclass(frozen=True, slots=True)
class Owner:
    """Another process that owns a name."""

    address: str
    """As that process gave it."""
    epoch: int
    """The fencing epoch of its lease."""
    expires_in_ms: int
    """The time until the name is free, unless that process renews its lease."""


class Lease:
    """This process owns a name. Returned by `Ownership.acquire`.

    Once lost or released, a lease stays so: the name has to be acquired again.
    """

    # Invariant: not (is_valid and _is_ended)
    __slots__ = (
        "_clock",
        "_is_ended",
        "_lease_ms",
        "_lock",
        "_token",
        "_valid_until_ns",
        "_version",
        "epoch",
        "name",
        "state",
    )

    def __init__(
        self, name: str, *, token: str, epoch: int, version: int, lease_ms: int, clock: Clock
    ) -> None:
        self.name = name
        self.epoch = epoch
        """The fencing epoch: above that of every earlier lease of this name."""
        self.state: bytes | None = None
        """The latest committed state, by this or an earlier owner."""
        self._token = token
        self._version = version
        self._lease_ms = lease_ms
        self._clock = clock
        # One commit at a time.
        self._lock = asyncio.Lock()
        self._is_ended = False
        self._valid_until_ns = 0

    @property
    def is_valid(self) -> bool:
        """True while no other process can own the name, by the monotonic clock of this process.

        Ask right before answering from memory. It cannot cover a process that is suspended between
        the question and the answer: what must not be handed out twice has to be committed first.
        """
        return not self._is_ended and self._clock.now_ns() < self._valid_until_ns

    def __repr__(self) -> str:
        state = "valid" if self.is_valid else "lost"
        return f"<Lease {self.name!r} epoch={self.epoch} {state}>"

    def _extend(self, sent_ns: int) -> None:
        """Extend it by a step that was sent at `sent_ns`: the store counts from later than that."""
        valid_ns = round(self._lease_ms * NS_PER_MS * (1 - _MARGIN))
        self._valid_until_ns = max(self._valid_until_ns, sent_ns + valid_ns)

    def _seconds_left(self) -> float:
        return max(0.0, (self._valid_until_ns - self._clock.now_ns()) / _NS_PER_SECOND)

    def _end(self) -> bool:
        """End it; return True iff this call did."""
        was_ended, self._is_ended = self._is_ended, True
        return not was_ended
