"""Fires into signals that several processes share."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final
from zlib import compress, decompressobj
from zlib import error as ZlibError  # noqa: N812 - an error, and named like one here

from purgatory.errors import SignalsConflictError, SignalsError, SignalsNotReadyError
from purgatory.fastapi.http.idempotency import fingerprint_of, key_reused, request_name
from purgatory.fastapi.http.problem_mapping import problem_of_error
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.keys.responses import fired_json, has_fired
from purgatory.fastapi.keys.schemas import MAX_BATCH
from purgatory.json_value import decode_json
from purgatory.purgatory import Purgatory
from purgatory.signals.fire_idempotency import Idempotency

logger = logging.getLogger("purgatory.fastapi")

# Larger responses are compressed, and not stored if that is not enough: the log has what a repeat
# needs besides the counts.
MAX_PLAIN_BYTES: Final = 512
MAX_STORED_BYTES: Final = 8 * 1024
# Of a response with a result for each key of a batch.
_MAX_RESPONSE_BYTES: Final = 1024 * MAX_BATCH


class SharedFires:
    """Fires with conditions that hold in all processes: the log checks them as it appends."""

    def __init__(self, purgatory: Purgatory) -> None:
        """Fire into the shared signals of `purgatory`."""
        self._purgatory = purgatory

    async def fire(
        self,
        items: Sequence[tuple[str, Any]],
        raw: RawRequest,
        name: str | None,
        unless_after: int | None = None,
        *,
        is_batch: bool = False,
    ) -> RawResponse:
        """Fire all or none; a repeat of an Idempotency-Key gets the first response. Raise Problem.

        `unless_after` is the position of If-Match, of the first key.
        """
        idempotency = None
        if name is not None:
            owner, name = request_name(raw, name)
            idempotency = Idempotency(
                owner=f"client:{owner}", name=name, fingerprint=fingerprint_of(raw).hex()
            )
        try:
            fired = await self._purgatory.fire_shared(
                items,
                unless_after=unless_after,
                idempotency=idempotency,
                owner=raw.permit.identity,
            )
        except SignalsConflictError as exc:
            if exc.is_name_reused:
                raise key_reused(name or "") from exc
            raise has_fired(self._purgatory, items[0][0]) from exc
        if isinstance(fired, bytes):
            return RawResponse.from_json(201, _unpacked(fired))
        rows = b",".join(map(fired_json, fired))
        body = b'{"results":[%b]}' % rows if is_batch else rows
        if idempotency is not None:
            await self._remember(idempotency, [key for key, _ in items], body)
        return RawResponse.from_json(201, body)

    async def _remember(self, idempotency: Idempotency, keys: Sequence[str], body: bytes) -> None:
        if len(body) > MAX_PLAIN_BYTES:
            body = compress(body)
        if len(body) > MAX_STORED_BYTES:
            return
        assert self._purgatory.shared_signals is not None
        try:
            await self._purgatory.shared_signals.remember(idempotency, keys, body)
        except SignalsError as exc:
            # The log has the signals already: a repeat gets their cursors, without the counts.
            logger.warning(
                "the response to Idempotency-Key %r was not stored: %s",
                idempotency.name,
                exc,
                extra={"action": "response-not-stored"},
            )


def _unpacked(stored: bytes) -> bytes:
    """Return the response that a process has stored; raise Problem if it is none."""
    try:
        # A JSON object begins otherwise than what is compressed.
        body = (
            stored
            if stored.startswith(b"{")
            else decompressobj().decompress(stored, _MAX_RESPONSE_BYTES)
        )
        decode_json(body)
    except (ValueError, ZlibError) as exc:
        logger.error(
            "a stored response is malformed (%s), and its repeats are refused",
            type(exc).__name__,
            extra={"action": "signals-malformed"},
        )
        raise problem_of_error(SignalsNotReadyError()) from exc
    return body
