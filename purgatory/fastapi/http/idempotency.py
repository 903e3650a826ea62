"""Requests that are repeated with the same Idempotency-Key (the IETF draft of that name)."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from purgatory.fastapi.http.requests import RawRequest
from purgatory.fastapi.http.responses import Problem, RawResponse
from purgatory.signals.model import REPEAT_S
from purgatory.timer import Clock

# The first of these limits that is reached evicts: a repeat comes within seconds, as a rule.
MAX_RESPONSES: Final = 10_000
RETENTION_NS: Final = REPEAT_S * 1_000_000_000
MAX_BYTES: Final = 16 * 1024 * 1024


@dataclass(slots=True)
class _Remembered:
    fingerprint: bytes
    response: asyncio.Future[RawResponse]
    at_ns: int


class _Owned:
    """The memory of one client: the names of its requests, and the bytes of the responses."""

    __slots__ = ("bytes", "names")

    def __init__(self) -> None:
        # {name: None}, the oldest first; names are removed from the front, where a dict is slow.
        self.names: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.bytes = 0


def request_name(raw: RawRequest, key: str) -> tuple[str, str]:
    """Return the identity of the client, empty for everyone without one, and the key."""
    return raw.permit.identity or "", key


def key_reused(key: str) -> Problem:
    """Return the problem of an Idempotency-Key that named another request."""
    return Problem(
        "idempotency-conflict",
        f"Idempotency-Key {key!r} was used for a request with another address or body: "
        "use a new key",
    )


def fingerprint_of(raw: RawRequest) -> bytes:
    """Return a hash by which a repeat differs from another request."""
    return hashlib.sha256(b"\0".join((raw.raw_path, raw.body))).digest()


class RepeatedRequests:
    """The responses to requests with an Idempotency-Key, kept for repeats.

    A repeat that arrives while the first request is being served waits for its response. Each
    client has keys of its own: those of its token, or those of everyone without one. Kept for
    REPEAT_S seconds are 10,000 responses and 16 MiB of them at most. If they are full, the client
    with most of them loses its oldest one, so that none evicts those of smaller ones.
    """

    # Invariant: in the order of `at_ns`, the oldest first.
    def __init__(self, clock: Clock) -> None:
        """Begin without responses."""
        self._clock = clock
        self._remembered: OrderedDict[tuple[str, str], _Remembered] = OrderedDict()
        # Invariant: the bytes of the responses that are complete.
        self._bytes = 0
        # {identity: what is kept of it}
        # Invariant: none is empty; their names are those of _remembered, and the sum of their bytes
        # is _bytes.
        self._owners: dict[str, _Owned] = {}

    async def respond(
        self, key: str | None, raw: RawRequest, make: Callable[[], Awaitable[RawResponse]]
    ) -> RawResponse:
        """Return the response of `make`, or of an earlier request with the same `key`.

        Raises Problem if `key` named another request. What `make` raises is not kept: the request
        may be tried again. Without a `key` nothing is kept.
        """
        if key is None:
            return await make()
        name = request_name(raw, key)
        fingerprint = fingerprint_of(raw)
        self._drop_old()
        known = self._remembered.get(name)
        if known is not None:
            if known.fingerprint != fingerprint:
                raise key_reused(key)
            # Shielded: this client may disconnect, and the first one still needs the response.
            return await asyncio.shield(known.response)
        return await self._first(name, fingerprint, make)

    async def _first(
        self, name: tuple[str, str], fingerprint: bytes, make: Callable[[], Awaitable[RawResponse]]
    ) -> RawResponse:
        future: asyncio.Future[RawResponse] = asyncio.get_running_loop().create_future()
        entry = _Remembered(fingerprint, future, self._clock.now_ns())
        self._make_room(name[0])
        self._remembered[name] = entry
        owned = self._owners.setdefault(name[0], _Owned())
        owned.names[name] = None
        try:
            response = await make()
        except BaseException as exc:
            # It may have been dropped, and another request may have its name.
            if self._remembered.get(name) is entry:
                self._drop(name)
            future.set_exception(exc if isinstance(exc, Exception) else _interrupted())
            # Retrieved, as there may be no repeat: asyncio would log it.
            future.exception()
            raise
        else:
            future.set_result(response)
            if self._remembered.get(name) is entry:
                self._bytes += len(response.body)
                owned.bytes += len(response.body)
            return response
        finally:
            # The future keeps the frames of its exception, this one too.
            del entry, future

    def _drop_old(self) -> None:
        oldest_ns = self._clock.now_ns() - RETENTION_NS
        while self._remembered:
            first = next(iter(self._remembered))
            if self._remembered[first].at_ns > oldest_ns:
                return
            self._drop(first)

    def _make_room(self, owner: str) -> None:
        """Drop what is beyond a limit, for another response to `owner`."""
        while (is_full := len(self._remembered) >= MAX_RESPONSES) or self._bytes > MAX_BYTES:
            taken = {
                name: len(owned.names) if is_full else owned.bytes
                for name, owned in self._owners.items()
            }
            largest = max(taken, key=taken.__getitem__)
            # Of equals, no one makes room for another.
            if taken.get(owner, 0) >= taken[largest]:
                largest = owner
            self._drop(next(iter(self._owners[largest].names)))

    def _drop(self, name: tuple[str, str]) -> None:
        entry = self._remembered.pop(name)
        owned = self._owners[name[0]]
        del owned.names[name]
        if not owned.names:
            del self._owners[name[0]]
        if entry.response.done() and entry.response.exception() is None:
            size = len(entry.response.result().body)
            self._bytes -= size
            owned.bytes -= size


def _interrupted() -> Problem:
    return Problem("internal-error", "the request that this one repeats was interrupted: try again")
