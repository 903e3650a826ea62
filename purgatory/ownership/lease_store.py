"""The protocol of lease stores: steps, the records that they return, and what holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from purgatory.errors import OwnershipUnavailableError

MAX_ADDRESS_LENGTH: Final = 2_000
MAX_STATE_BYTES: Final = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquire:
    """Take the lease, unless another process holds it.

    A repeat with the same token is the same acquisition, whose reply was lost. Another token of the
    same instance takes over at once: that process has given up the older lease.
    """

    name: str
    token: str
    """Random, new for each acquisition."""
    instance: str
    """Random, new for each process."""
    address: str
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Extend the lease."""

    name: str
    token: str
    epoch: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Replace the state, and extend the lease."""

    name: str
    token: str
    epoch: int
    lease_ms: int
    version: int
    """Above all earlier ones of this lease: a delayed commit must not undo a later one."""
    state: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """End the lease; state and epoch stay."""

    name: str
    token: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Return the record."""

    name: str


LeaseStep: TypeAlias = Acquire | Renew | Commit | Release | Read


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """What a store has under a name, after a step."""

    is_done: bool
    """True iff the step was allowed. False after Renew, Commit and Release: the lease is lost."""
    epoch: int = 0
    """The fencing epoch: the number of the latest acquisition, which only grows. 0: none."""
    version: int = 0
    """The version of the latest commit."""
    address: str | None = None
    """The address of the current owner; None if no lease is held."""
    remaining_ms: int = 0
    """The time until the lease ends unless it is renewed, by the clock of the store."""
    state: bytes | None = None
    """The committed state; only after Acquire and Read."""


LeaseResult: TypeAlias = LeaseRecord | OwnershipUnavailableError


class LeaseStore(Protocol):
    """Keeps a record for each name. Every step is atomic.

    What holds for one name, whatever is delayed, repeated or lost between a process and the store:

    - Renew, Commit and Release are done only with the token and epoch of the latest acquisition, so
      that the state never changes by an owner that has been replaced.
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
