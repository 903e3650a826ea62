"""The endpoints of keys: fire, describe, drop, list, with their JSON.

Not here: waiting for a key (`watch`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import lru_cache, partial
from heapq import nsmallest
from typing import Annotated, Any, Final
from zlib import compress, decompressobj
from zlib import error as ZlibError  # noqa: N812 - an error, and named like one here

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, ConfigDict, Field

from purgatory.errors import (
    InvalidValueError,
    PurgatoryError,
    SignalsConflictError,
    SignalsError,
    SignalsNotReadyError,
)
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.idempotency import (
    RepeatedRequests,
    fingerprint_of,
    key_reused,
    request_name,
)
from purgatory.fastapi.http.json_bodies import (
    ENVELOPE,
    ESCAPED,
    KEY_ROOM,
    JsonBody,
    Key,
    NextCursor,
    RequestBody,
    any_json,
    bad_field,
    with_fields,
)
from purgatory.fastapi.http.parameters import (
    EntityTags,
    IdempotencyKeyText,
    IfMatchTags,
    KeyInPath,
    Prefix,
    WholeNumber,
)
from purgatory.fastapi.http.requests import READ, Access, Action, RawRequest
from purgatory.fastapi.http.responses import (
    ALLOWED_VALUE,
    Problem,
    RawResponse,
    bad_parameter,
    draining_problem,
)
from purgatory.fastapi.routing.endpoints import EndpointContext
from purgatory.fastapi.routing.routes import add_handler
from purgatory.json_value import decode_json
from purgatory.limits import Limits
from purgatory.operations.watch_key import check_key
from purgatory.outcome import FireResult
from purgatory.purgatory import Purgatory
from purgatory.signals.model import Idempotency
from purgatory.turn_budget import TurnBudget

# Signals in one request.
MAX_BATCH: Final = 1000
MIN_BATCH_BODY: Final = 1024 * 1024


class SignalBody(RequestBody):
    """A signal to fire."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"value": {"by": "card"}}]})

    value: Any = None


class BatchItem(RequestBody):
    """One signal of a batch."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"key": "order:42:paid", "value": {"by": "card"}}]}
    )

    key: Key
    value: Any = None


@lru_cache(maxsize=64)
def signal_json(limits: Limits) -> JsonBody[SignalBody]:
    """Return the body of a fire, which may be left out."""
    model = with_fields(SignalBody, value=any_json(limits.max_value_bytes))
    return JsonBody(model, max_bytes=_max_signal_bytes(limits), default=model())


@lru_cache(maxsize=64)
def batch_json(limits: Limits) -> JsonBody[list[BatchItem]]:
    """Return the body of several fires: many small values, or one of the largest."""
    model: Any = with_fields(BatchItem, value=any_json(limits.max_value_bytes))
    item = JsonBody[BatchItem](model, max_bytes=_max_signal_bytes(limits) + KEY_ROOM)
    return JsonBody(
        list[model],
        max_bytes=max(MIN_BATCH_BODY, item.max_bytes),
        bounds={"min_length": 1, "max_length": MAX_BATCH},
        item=item,
    )


def _max_signal_bytes(limits: Limits) -> int:
    return ESCAPED * limits.max_value_bytes + ENVELOPE


class FireResponse(BaseModel):
    """The signal is kept, and its waiters are woken."""

    cursor: NextCursor = Field(description="The cursor just after the signal.")
    seq: int = Field(description="The signal's number: counts up within its key.")
    completed: int = Field(description="Operations of this process that it completed.")
    jobs: int = Field(0, description="Delayed jobs that it decided; left out if 0.")
    jobs_pending: bool = Field(
        False,
        description="The job store is away: the delayed jobs on the key that were deferred before "
        "this fire are decided when it is back. With shared signals this survives the process, "
        "otherwise it does not. Left out if false.",
    )


class FireBatchResponse(BaseModel):
    """One entry for each signal, in the order of the request."""

    results: list[FireResponse] = Field(description="In the order of the request.")


class WaitingCount(BaseModel):
    """The number of waiters on a key."""

    here: int = Field(description="In this process.")
    everywhere: int = Field(description="In all processes.")


class KeyResponse(BaseModel):
    """The cursors and waiters of a key."""

    key: str = Field(examples=["order:42:paid"], description="The key.")
    cursor: NextCursor = Field(description="To continue from now, as the `cursor` of a wait.")
    earliest: str = Field(
        description="To continue from the earliest signal that is kept.",
        examples=["8c1f0a9be2d4-0"],
    )
    waiting: WaitingCount


class DropKeyResponse(BaseModel):
    """The waits on the key have ended, and its history is dropped."""

    cancelled: int = Field(description="Waits that were ended.")
    cursor: NextCursor = Field(description="From now on.")


class WatchedKey(BaseModel):
    """A watched key."""

    key: str = Field(examples=["order:42:paid"], description="The key.")
    waiting: int = Field(description="The number of its waiters.")


class WatchedKeysResponse(BaseModel):
    """Watched keys."""

    keys: list[WatchedKey] = Field(description="In order.")
    more: bool = Field(description="There are more than `limit`.")


def fired_json(fired: FireResult) -> bytes:
    """Return the JSON of what a fire did."""
    return b'{"cursor":"%b","seq":%d,"completed":%d%b%b}' % (
        fired.cursor.encode(),
        fired.seq,
        fired.completed,
        b',"jobs":%d' % fired.jobs if fired.jobs else b"",
        b',"jobs_pending":true' if fired.jobs_pending else b"",
    )


def has_fired(purgatory: Purgatory, key: str) -> Problem:
    """Return the problem of a fire whose If-Match names a cursor from before the last one."""
    signals = purgatory.signals
    head = signals.cursor(signals.last(key))
    return Problem(
        "precondition-failed",
        f"key {key!r} has fired since the cursor of If-Match; its cursor is {head!r} now: "
        "read the state again, then fire with that",
        head=head,
    )


logger = logging.getLogger("purgatory.fastapi")

# Larger responses are compressed, and not stored if that is not enough: the log has what a repeat
# needs besides the counts.
MAX_PLAIN_BYTES: Final = 512
MAX_STORED_BYTES: Final = 8 * 1024
# Of a response with a result for each key of a batch.
_MAX_RESPONSE_BYTES: Final = 1024 * MAX_BATCH


def _unpacked(stored: bytes) -> bytes:
    """Return the response that a process has stored; raise SignalsNotReadyError if it is none."""
    try:
        body = stored
        # A JSON object begins otherwise than what is compressed.
        if not stored.startswith(b"{"):
            body = decompressobj().decompress(stored, _MAX_RESPONSE_BYTES)
        decode_json(body)
    except (ValueError, ZlibError) as exc:
        logger.error(
            "a stored response is malformed (%s), and its repeats are refused",
            type(exc).__name__,
            extra={"action": "signals-malformed"},
        )
        raise SignalsNotReadyError from exc
    return body


# Keys fired in one turn of the event loop, and bytes of their values.
FIRED_TOGETHER: Final = 100
BYTES_TOGETHER: Final = 64 * 1024

_CONDITIONS: Final = frozenset({b"if-match"})

IdempotencyKey = Annotated[
    IdempotencyKeyText,
    Header(
        description="Names this request: a repeat of it within ten minutes gets the first "
        "response, and does nothing."
    ),
]


class KeyEndpoints:
    """The handlers under `/keys`."""

    def __init__(self, purgatory: Purgatory) -> None:
        """Work on the keys of `purgatory`."""
        self._purgatory = purgatory
        self._repeats = RepeatedRequests(purgatory.clock)
        self._is_shared = purgatory.shared_signals is not None

    # Not async: most fires have no condition, and need no coroutine but that of `_fire`.
    def fire_key(
        self,
        raw: RawRequest,
        key: KeyInPath,
        body: SignalBody | None = None,
        idempotency_key: IdempotencyKey = None,
        if_match: Annotated[
            IfMatchTags, Header(description='`"<cursor>"`: only if nothing fired since.')
        ] = None,
    ) -> Awaitable[RawResponse]:
        """Fire a key.

        Fire a key: keep the signal, and wake its waiters.

        With an `Idempotency-Key`, a repeat within ten minutes gets the first response and fires
        nothing.
        """
        value = None if body is None else body.value
        if idempotency_key is None and if_match is None:
            return self._fire(key, value, raw)
        name, tags = idempotency_key, if_match
        if self._is_shared:
            return self._fire_shared([(key, value)], raw, name, self._matched(key, tags))

        async def fire_if() -> RawResponse:
            self._check_head(key, tags)
            return await self._fire(key, value, raw)

        return self._repeats.respond(name, raw, fire_if)

    async def _fire_shared(
        self,
        items: Sequence[tuple[str, Any]],
        raw: RawRequest,
        name: str | None,
        unless_after: int | None = None,
        *,
        is_batch: bool = False,
    ) -> RawResponse:
        """Fire all or none, with conditions that hold in all processes: the log checks them.

        A repeat of an Idempotency-Key gets the first response. `unless_after` is the position of
        If-Match, of the first key. Raises Problem.
        """
        idempotency = None
        if name is not None:
            owner, name = request_name(raw, name)
            idempotency = Idempotency(
                owner=f"client:{owner}", name=name, fingerprint=fingerprint_of(raw).hex()
            )
        try:
            fired = await self._purgatory.fire_shared(
                items, unless_after=unless_after, idempotency=idempotency, owner=raw.permit.identity
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

    async def _fire(self, key: str, value: Any, raw: RawRequest) -> RawResponse:
        self._require_reach()
        fired = await self._purgatory.fire(key, value, owner=raw.permit.identity)
        return RawResponse.from_json(201, fired_json(fired))

    def _require_reach(self) -> None:
        """Raise Problem if a signal would be lost: the process drains, its signals in memory."""
        if self._purgatory.is_draining and not self._is_shared:
            raise draining_problem("its signals would be lost")

    async def fire_keys(
        self, raw: RawRequest, body: list[BatchItem], idempotency_key: IdempotencyKey = None
    ) -> RawResponse:
        """Fire several keys.

        Fire several keys: all of them or, if one is refused, none.

        `If-Match` is refused, since each key has a cursor of its own.
        """
        items = body
        _refuse_condition(raw)
        # Before a kept response: a client without permission gets none.
        budget = TurnBudget()
        for start in range(0, len(items), FIRED_TOGETHER):
            some = items[start : start + FIRED_TOGETHER]
            raw.permit.check_keys(Action.FIRE, (item.key for item in some))
            await budget.yield_if_spent()
        if self._is_shared:
            await self._groups(items)
            pairs = [(item.key, item.value) for item in items]
            return await self._fire_shared(pairs, raw, idempotency_key, is_batch=True)

        async def fire_all() -> RawResponse:
            groups = await self._groups(items)
            # Freed group by group: so many values at once take their time.
            items.clear()
            return await self._fire_all(groups, raw.permit.identity)

        return await self._repeats.respond(idempotency_key, raw, fire_all)

    async def _fire_all(self, groups: deque[list[BatchItem]], owner: str | None) -> RawResponse:
        # Once: a batch that has begun fires all.
        self._require_reach()
        fired: list[FireResult] = []
        budget = TurnBudget()
        while groups:
            fired += await self._fire_together(groups.popleft(), owner)
            await budget.yield_if_spent()
        return RawResponse.from_json(201, b'{"results":[%b]}' % b",".join(map(fired_json, fired)))

    async def _groups(self, items: list[BatchItem]) -> deque[list[BatchItem]]:
        """Return the items in the groups that are fired together; raise Problem for an invalid one.

        So that firing a group takes no longer than a turn of the event loop may.
        """
        budget = TurnBudget()
        groups: deque[list[BatchItem]] = deque()
        room = 0
        for index, item in enumerate(items):
            size = self._check(index, item)
            if not groups or len(groups[-1]) == FIRED_TOGETHER or room < size:
                groups.append([])
                room = BYTES_TOGETHER
            groups[-1].append(item)
            room -= size
            await budget.yield_if_spent()
        return groups

    async def _fire_together(self, items: list[BatchItem], owner: str | None) -> list[FireResult]:
        # At the same time, to share the round trips to a job store; begun in order, so that the
        # signals of a key are in order too.
        fires = [self._purgatory.fire(item.key, item.value, owner=owner) for item in items]
        ends = await asyncio.gather(*fires, return_exceptions=True)
        fired = [end for end in ends if not isinstance(end, BaseException)]
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return fired

    async def describe_key(self, key: KeyInPath) -> KeyResponse:
        """Look at a key.

        Return the cursor of a key, and the number of its waiters. Does not park.
        """
        check_key(key)
        signals = self._purgatory.signals
        waiting = self._purgatory.waiting(key)
        everywhere = await self._purgatory.waiting_everywhere(key)
        return KeyResponse(
            key=key,
            cursor=signals.cursor_of((key,)),
            earliest=signals.cursor(signals.earliest(key)),
            waiting=WaitingCount(here=waiting, everywhere=everywhere),
        )

    async def drop_key(self, key: KeyInPath) -> DropKeyResponse:
        """Drop a key.

        End every wait on the key with reason "cancelled", and drop its history.
        """
        cancelled = await self._purgatory.cancel(key)
        cursor = self._purgatory.signals.cursor_of((key,))
        return DropKeyResponse(cancelled=cancelled, cursor=cursor)

    async def list_keys(
        self,
        prefix: Annotated[Prefix, Query(description="Only keys that begin with this.")] = "",
        limit: Annotated[WholeNumber, Query(description="Keys in the response.")] = 100,
    ) -> WatchedKeysResponse:
        """List watched keys.

        List the watched keys, in order, and the number of waiters of each.
        """
        watched = self._purgatory.watched_keys()
        # One more than in the response: 100,000 may be watched, and need not all be sorted.
        keys = nsmallest(limit + 1, (key for key in watched if key.startswith(prefix)))
        rows = [WatchedKey(key=key, waiting=watched[key]) for key in keys[:limit]]
        return WatchedKeysResponse(keys=rows, more=len(keys) > limit)

    def _check_head(self, key: str, tags: EntityTags | None) -> None:
        """Raise Problem if `key` fired since every cursor that If-Match names."""
        matched = self._matched(key, tags)
        if matched is not None and self._purgatory.signals.last(key) > matched:
            raise has_fired(self._purgatory, key)

    def _matched(self, key: str, tags: EntityTags | None) -> int | None:
        """Return the last position that If-Match names, None without a condition; raise Problem."""
        if tags is None or tags.is_any:
            return None
        check_key(key)
        positions: list[int] = []
        problem: Problem | None = None
        for cursor in sorted(tag[1:-1].decode("latin-1") for tag in tags.strong_tags):
            try:
                positions.append(self._purgatory.signals.position(key, cursor))
            except PurgatoryError as exc:
                # One of several may be from before a restart, while another one is current.
                problem = problem or problem_of_error(exc, "If-Match")
        if not positions:
            raise problem or Problem(
                "precondition-failed",
                "If-Match names weak tags only, which match nothing: leave out the W/",
                head=self._purgatory.signals.cursor_of((key,)),
            )
        return max(positions)

    def _check(self, index: int, item: BatchItem) -> int:
        """Return the bytes of an item's value; raise Problem if it is invalid."""
        try:
            return len(self._purgatory.signals.encode(item.value))
        except InvalidValueError as exc:
            raise bad_field((index, "value"), exc.detail, ALLOWED_VALUE) from exc


def _refuse_condition(raw: RawRequest) -> None:
    # A client whose condition is ignored takes the response for "nothing had fired since".
    if raw.has_any(_CONDITIONS):
        raise bad_parameter(
            "If-Match",
            "a batch has no condition, since each key has a cursor of its own",
            "left out; to fire one key only if nothing has fired since, send it alone",
        )


_KEY_PATH: Final = "/keys/{key:watch_key}"
_STORING: Final = ("not-open", "signals-unavailable")


def add_key_routes(router: APIRouter, context: EndpointContext) -> None:
    """Add the routes of keys to `router`."""
    endpoints = KeyEndpoints(context.purgatory)
    add = partial(add_handler, router, context)
    fires = add(
        f"POST {_KEY_PATH}",
        endpoints.fire_key,
        Access(Action.FIRE),
        body=signal_json(context.purgatory.limits),
        status_code=201,
        response_model=FireResponse,
        problems=(
            *_STORING,
            "draining",
            "bad-cursor",
            "cursor-expired",
            "precondition-failed",
            "idempotency-conflict",
        ),
    )
    fires.is_fast = True
    add(
        "POST /keys",
        endpoints.fire_keys,
        Access(Action.FIRE),
        body=batch_json(context.purgatory.limits),
        status_code=201,
        response_model=FireBatchResponse,
        problems=(*_STORING, "draining", "idempotency-conflict"),
    )
    add(f"GET {_KEY_PATH}", endpoints.describe_key, Access(Action.WAIT))
    add(f"DELETE {_KEY_PATH}", endpoints.drop_key, Access(Action.OPERATE), problems=_STORING)
    add("GET /keys", endpoints.list_keys, READ)
