"""A lease as its holder and others see it, and the protocol of lease stores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from purgatory.errors import OwnershipUnavailableError
from purgatory.timer import Clock
from purgatory.timer.clock import NS_PER_MS, NS_PER_SECOND

MAX_ADDRESS_LENGTH: Final = 2_000
MAX_STATE_BYTES: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class LeaseStep:
    """What is done with the record of a name, in one atomic step.

    `acquire` takes the lease, unless another process holds it. A repeat with the same token is the
    same acquisition, whose reply was lost. Another token of the same instance takes over at once:
    that process has given up the older lease.

    `renew` extends the lease, `commit` also replaces the state, and `release` ends the lease: state
    and epoch stay. `read` changes nothing, and needs no more than the name.
    """

    action: Literal["acquire", "renew", "commit", "release", "read"]
    name: str
    token: str = ""
    """Random, new for each acquisition."""
    epoch: int = 0
    """That of the acquisition, for the steps after it."""
    lease_ms: int = 0
    instance: str = ""
    """Random, new for each process."""
    address: str = ""
    version: int = 0
    """Above all earlier ones of this lease: a delayed commit must not undo a later one."""
    state: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """What a store has under a name, after a step."""

    is_done: bool
    """True iff the step was allowed. False: the lease is lost; not after `acquire` and `read`."""
    epoch: int = 0
    """The fencing epoch: the number of the latest acquisition, which only grows. 0: none."""
    version: int = 0
    """The version of the latest commit."""
    address: str | None = None
    """The address of the current owner; None if no lease is held."""
    remaining_ms: int = 0
    """The time until the lease ends unless it is renewed, by the clock of the store."""
    state: bytes | None = None
    """The committed state; only after `acquire` and `read`."""


LeaseResult: TypeAlias = LeaseRecord | OwnershipUnavailableError


class LeaseStore(Protocol):
    """Keeps a record for each name. Every step is atomic.

    What holds for one name, whatever is delayed, repeated or lost between a process and the store:

    - Renewals, commits and releases are done only with the token and epoch of the latest
      acquisition, so that the state never changes by an owner that has been replaced.
    - Commits of one lease are applied in the order of their versions; a delayed one is skipped.
    - The epoch of each acquisition is above all earlier ones, and at least the time of the store in
      microseconds. So it also grows after the record was lost (FLUSHALL, a failover that lost
      writes), unless the clock of the store has gone back further than that.
    """

    async def open(self) -> None:
        """Connect, or go on trying; raise OwnershipNotReadyError if it loses records in silence."""
        ...

    async def close(self) -> None:
        """Release every connection."""
        ...

    async def run(self, steps: Sequence[LeaseStep]) -> list[LeaseResult]:
        """Run steps, each for a name of its own; return a record or an error for each."""
        ...


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

    def _step(
        self,
        action: Literal["renew", "commit", "release"],
        *,
        version: int = 0,
        state: bytes | None = None,
    ) -> LeaseStep:
        return LeaseStep(
            *(action, self.name, self._token, self.epoch, self._lease_ms),
            version=version,
            state=state,
        )

    def _seconds_left(self) -> float:
        return max(0.0, (self._valid_until_ns - self._clock.now_ns()) / NS_PER_SECOND)

    def _end(self) -> bool:
        """End it; return True iff this call did."""
        was_ended, self._is_ended = self._is_ended, True
        return not was_ended
