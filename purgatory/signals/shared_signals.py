"""The protocol of signals that several processes share."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from purgatory.limits import Limits
from purgatory.signals.memory import MemorySignals
from purgatory.signals.protocol import SharedSignalStatistics
from purgatory.timer import Clock
from purgatory.trace_context import TracePropagation


class EntryType(StrEnum):
    """What an entry says about its key."""

    FIRED = "f"
    DROPPED = "d"
    """The key's history was dropped, and its waits end as cancelled."""
    LOST = "x"
    """The server lost entries of the key: cursors from before are expired."""
    UNREADABLE = "?"
    """Malformed, without a key. It has no effect, and is never written."""


class LogEntry(NamedTuple):
    """One entry: a signal, or the end of a key's history so far."""

    offset: int
    """Offsets of a log are 1, 2, 3 ...; those of removed entries are not used again."""
    type: EntryType
    seq: int
    at_ms: int
    """UTC milliseconds since 1970, by the server's clock."""
    previous: int
    """The offset of the key's entry before this one; 0 if there is none."""
    key: str
    encoded: bytes
    """The value as JSON; empty unless it was fired."""
    owner: str | None = None
    """A short name of the owner, if it has one: owners share the history fairly."""
    traceparent: str | None = None
    """The trace context in which it was appended, if that is traced."""


class Epoch(NamedTuple):
    """A part of a log's history in which nothing was lost."""

    name: str
    start: int
    """The offset after which it began: later ones of earlier epochs are lost."""


REPEAT_S: Final = 600
"""Seconds for which a repeat is recognized: by one process, and by the log of several."""
REPEAT_PART: Final = 0.25
"""The part of `Limits.max_signal_bytes` that names and responses may take in addition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """The name of a request, so that its repeat appends nothing."""

    owner: str
    """The owner of the name; the names of different owners are different.

    Owners share the memory fairly: once it is full, the one with most forgets its oldest names.
    """
    name: str
    fingerprint: str
    """Identifies the content: a repeat with another one is refused."""
    is_of_one_key: bool = False
    """Nobody uses the name for another key: only the log of that has to know it."""

    @property
    def hash(self) -> str:
        """Hexadecimal digits for this owner and name, and no others."""
        text = f"{len(self.owner)} {self.owner}{self.name}".encode("utf-8", "surrogatepass")
        return blake2b(text, digest_size=16).hexdigest()


class Appended(NamedTuple):
    """A signal that is in the log, and was applied here."""

    cursor: str
    """The cursor just after it."""
    seq: int
    completed: int
    """How many operations of this process it completed."""


class SignalListener(Protocol):
    """What a follower of the log calls in its process."""

    def check(self, key: str) -> int | Future[int]:
        """Try the operations on `key`; return how many that completed."""
        ...

    def cancel(self, key: str) -> int | Future[int]:
        """End the operations on `key` as cancelled; return how many there were."""
        ...

    def watched(self) -> list[str]:
        """Return the keys with operations."""
        ...


class PendingRecords(Protocol):
    """Records of fires whose jobs are not decided yet, oldest first.

    Every method raises SignalsUnavailableError.
    """

    async def add(self, record: bytes) -> None:
        """Keep a record."""
        ...

    async def first(self, limit: int, skipped: int = 0) -> list[bytes]:
        """Return the first records but `skipped`."""
        ...

    async def remove(self, records: Sequence[bytes]) -> None:
        """Forget one record equal to each of these."""
        ...


class SharedSignals(Protocol):
    """Signals that several processes share: a log, and a copy of it in each of them."""

    @property
    def propagation(self) -> TracePropagation | None:
        """Reads the trace context of fires, which entries carry; restores it where they apply."""
        ...

    @propagation.setter
    def propagation(self, propagation: TracePropagation | None) -> None: ...

    def bind(self, clock: Clock, limits: Limits) -> MemorySignals:
        """Return the copy in this process; called once, by the purgatory that uses it."""
        ...

    def begin(self, listener: SignalListener) -> None:
        """Start to follow the log on the running event loop."""
        ...

    async def opened(self) -> None:
        """Return once the log was read, or after a while; raise SignalsNotReadyError."""
        ...

    def hurry(self) -> None:
        """Leave half a second to what is under way: the process ends, and the server may hang."""
        ...

    async def close(self) -> None:
        """Stop following the log, and release every connection."""
        ...

    @property
    def missing(self) -> list[str]:
        """What is missing until signals are exchanged, a sentence each."""
        ...

    @property
    def answers(self) -> dict[str, Callable[[str], int]]:
        """Return the functions that answer questions of other processes, by name."""
        ...

    @property
    def text_answers(self) -> dict[str, Callable[[str], Awaitable[str]]]:
        """Return the functions that answer questions with a text, by name."""
        ...

    async def ask_texts(self, question: str, argument: str) -> list[str]:
        """Return the texts with which the other processes answer, as `ask` does."""
        ...

    async def ask(self, question: str, argument: str) -> list[int]:
        """Return the answers of the other processes; raise SignalsUnavailableError.

        For what is known to one process only, such as how many wait there. A process that does not
        answer within a second is left out.
        """
        ...

    def tell(self, question: str, argument: str) -> None:
        """Ask the other processes, without waiting for their answers."""
        ...

    async def append(self, items: Sequence[tuple[EntryType, str, bytes]]) -> list[Appended]:
        """Append entries of (type, key, value as JSON), all or none, and wait until they are here.

        Returns a result for each. Raises SignalsUnavailableError: then it may or may not be done.
        """
        ...

    async def append_if(
        self,
        items: Sequence[tuple[EntryType, str, bytes]],
        *,
        unless_after: int | None = None,
        idempotency: Idempotency | None = None,
        owner: str | None = None,
    ) -> list[Appended] | bytes:
        """Append entries unless the first key has one after the position `unless_after`.

        Owners share the log fairly: see `MemorySignals`.

        With `idempotency`, a repeat appends nothing: the result is the response of the first
        request of that name, or what that has appended if `remember` has stored none. Raises also
        SignalsConflictError, for either condition.
        """
        ...

    async def remember(
        self, idempotency: Idempotency, keys: Sequence[str], response: bytes
    ) -> None:
        """Store the response of a request, which has fired `keys`, for its repeats."""
        ...

    @property
    def pending_fires(self) -> PendingRecords:
        """Records of fires whose jobs are not decided, kept beside the log for any process."""
        ...

    async def catch_up(self, keys: Sequence[str], positions: Sequence[int]) -> None:
        """Return once the copy here has reached `positions`; raise SignalsUnavailableError."""
        ...

    async def read_to_end(self, keys: Sequence[str]) -> None:
        """Return once all that was in the logs of `keys` at the call is here.

        Raises SignalsUnavailableError.
        """
        ...

    async def refresh(self) -> None:
        """Read the log soon, as a cursor is not known here; several callers share that."""
        ...

    def require_loaded(self) -> None:
        """Raise SignalsUnavailableError until the log was read once."""
        ...

    def statistics(self) -> SharedSignalStatistics:
        """Return counts of this process."""
        ...
