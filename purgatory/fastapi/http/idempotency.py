"""Requests that are repeated with the same Idempotency-Key (the IETF draft of that name)."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from purgatory.fastapi.http.problems import Problem, bad_parameter
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.timer import Clock

# One of these or the other is given up first: a repeat comes within seconds, as a rule.
MAX_ANSWERS: Final = 10_000
RETENTION_NS: Final = 600 * 1_000_000_000
MAX_BYTES: Final = 16 * 1024 * 1024
_KEY: Final = re.compile(r'"([\x20-\x21\x23-\x5b\x5d-\x7e]{1,255})"|([\x21\x23-\x7e]{1,255})')


@dataclass(slots=True)
class _Remembered:
    fingerprint: bytes
    answer: asyncio.Future[RawResponse]
    at_ns: int


def request_name(raw: RawRequest) -> tuple[str, str] | None:
    """Return who asks and the Idempotency-Key, None without one; raise Problem for what is none."""
    key = _parse(raw.header(b"idempotency-key"))
    return None if key is None else (raw.permit.identity or "", key)


def used_otherwise(name: tuple[str, str]) -> Problem:
    """Return the refusal of a `request_name` that another request had."""
    return Problem(
        "idempotency-conflict",
        f"Idempotency-Key {name[1]!r} was used for a request with another address or body",
    )


class RepeatedRequests:
    """Remembers the answers to requests with an Idempotency-Key, and gives them to repeats.

    A repeat that comes while the first is at work waits for it. Each client has keys of its own:
    its token's, or those of everyone without one. Ten minutes, 10,000 answers and 16 MiB of them
    at most; the oldest makes way.
    """

    # Invariant: in the order of `at_ns`, the oldest first.
    def __init__(self, clock: Clock) -> None:
        """Remember nothing yet."""
        self._clock = clock
        self._remembered: OrderedDict[tuple[str, str], _Remembered] = OrderedDict()
        # Invariant: the bytes of the answers that are there.
        self._bytes = 0

    async def respond(
        self, raw: RawRequest, make: Callable[[], Awaitable[RawResponse]]
    ) -> RawResponse:
        """Return what `make` answers, or answered to the same request before.

        Raises Problem for a key that is none, and for one that was used for another request. What
        `make` raises is not remembered: the request may be tried again.
        """
        name = request_name(raw)
        if name is None:
            return await make()
        fingerprint = hashlib.sha256(b"\0".join((raw.raw_path, raw.body))).digest()
        self._forget_old()
        known = self._remembered.get(name)
        if known is not None:
            if known.fingerprint != fingerprint:
                raise used_otherwise(name)
            # Shielded: this client may leave, and the first one still wants its answer.
            return await asyncio.shield(known.answer)
        return await self._first(name, fingerprint, make)

    async def _first(
        self, name: tuple[str, str], fingerprint: bytes, make: Callable[[], Awaitable[RawResponse]]
    ) -> RawResponse:
        future: asyncio.Future[RawResponse] = asyncio.get_running_loop().create_future()
        entry = _Remembered(fingerprint, future, self._clock.now_ns())
        self._remembered[name] = entry
        try:
            answer = await make()
        except BaseException as exc:
            # Unless it has made way meanwhile: there may be another one of that name.
            if self._remembered.get(name) is entry:
                del self._remembered[name]
            future.set_exception(exc if isinstance(exc, Exception) else _interrupted())
            # Perhaps nobody repeated it, and nobody is there to be told.
            future.exception()
            raise
        future.set_result(answer)
        if self._remembered.get(name) is entry:
            self._bytes += len(answer.body)
        return answer

    def _forget_old(self) -> None:
        oldest_ns = self._clock.now_ns() - RETENTION_NS
        while self._remembered:
            first = next(iter(self._remembered))
            entry = self._remembered[first]
            is_full = len(self._remembered) >= MAX_ANSWERS or self._bytes > MAX_BYTES
            if entry.at_ns > oldest_ns and not is_full:
                return
            del self._remembered[first]
            if entry.answer.done():
                self._bytes -= len(entry.answer.result().body)


def _interrupted() -> Problem:
    return Problem("internal-error", "the request that this one repeats was interrupted: try again")


def _parse(header: str | None) -> str | None:
    if header is None:
        return None
    match = _KEY.fullmatch(header)
    if match is None:
        raise bad_parameter(
            "Idempotency-Key",
            f"Idempotency-Key is {header[:64]!r}",
            "1 to 255 printable ASCII characters, in quotes or without",
        )
    return match[1] or match[2]
