"""What can be done with keys: fire, ask, drop, list."""

from __future__ import annotations

import asyncio
from heapq import nsmallest
from typing import Any, Final

from purgatory.errors import InvalidKeyError, InvalidValueError, PurgatoryError
from purgatory.fastapi.http.etag import EntityTags
from purgatory.fastapi.http.idempotency import RepeatedRequests
from purgatory.fastapi.http.json_bodies import bad_field, parse_body, parse_list
from purgatory.fastapi.http.permit import Access, Action
from purgatory.fastapi.http.preferences import parse_entity_tags
from purgatory.fastapi.http.problems import (
    ALLOWED_KEY,
    ALLOWED_VALUE,
    Problem,
    bad_parameter,
    problem_of_error,
)
from purgatory.fastapi.http.raw_request import RawRequest, read_query, whole_number
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.http.validation_errors import ParameterErrors
from purgatory.fastapi.keys.schemas import MAX_BATCH, BatchItem, SignalBody
from purgatory.fire_result import FireResult
from purgatory.operations.watch_key import check_key
from purgatory.purgatory import Purgatory

NO_QUERY: Final = frozenset[str]()
LIST_QUERY: Final = frozenset({"prefix", "limit"})
DEFAULT_LIST_LIMIT: Final = 100
CONDITIONS: Final = frozenset({b"idempotency-key", b"if-match"})
# Keys that are fired in one turn of the event loop.
FIRED_TOGETHER: Final = 100


class KeyEndpoints:
    """The handlers under `/keys`."""

    def __init__(self, purgatory: Purgatory) -> None:
        """Work on the keys of `purgatory`."""
        self._purgatory = purgatory
        self._repeats = RepeatedRequests(purgatory.clock)

    async def fire(self, raw: RawRequest) -> RawResponse:
        """Fire one key."""
        key = raw.key()
        raw.permit.check_keys(Action.FIRE, (key,))
        raw.query(NO_QUERY)
        if raw.has_any(CONDITIONS):
            return await self._repeats.respond(raw, lambda: self._fire_if(key, raw))
        # _fire, written out: most fires have no condition.
        fired = await self._purgatory.fire(key, _value(raw))
        return RawResponse.from_json(201, _fired_json(fired))

    async def _fire_if(self, key: str, raw: RawRequest) -> RawResponse:
        # A body that is none is refused first.
        _value(raw)
        self._check_head(key, parse_entity_tags(raw.headers_named(b"if-match"), "If-Match"))
        return await self._fire(key, raw)

    async def _fire(self, key: str, raw: RawRequest) -> RawResponse:
        fired = await self._purgatory.fire(key, _value(raw))
        return RawResponse.from_json(201, _fired_json(fired))

    async def fire_batch(self, raw: RawRequest) -> RawResponse:
        """Fire several keys, all of them or, where one is no good, none."""
        raw.query(NO_QUERY)
        # Before anything is remembered: those who may not are told so, whatever was done before.
        items = parse_list(BatchItem, raw.body, MAX_BATCH)
        raw.permit.check_keys(Action.FIRE, (item.key for item in items))
        return await self._repeats.respond(raw, lambda: self._fire_all(items))

    async def _fire_all(self, items: list[BatchItem]) -> RawResponse:
        for index, item in enumerate(items):
            self._check(index, item)
        fired: list[FireResult] = []
        for start in range(0, len(items), FIRED_TOGETHER):
            fired += await self._fire_together(items[start : start + FIRED_TOGETHER])
        return RawResponse.from_json(201, b'{"results":[%b]}' % b",".join(map(_fired_json, fired)))

    async def _fire_together(self, items: list[BatchItem]) -> list[FireResult]:
        # Those who ask a store of jobs at the same time share its round trip. They begin in order,
        # so that a key's signals are in order too.
        fires = [self._purgatory.fire(item.key, item.value) for item in items]
        ends = await asyncio.gather(*fires, return_exceptions=True)
        fired = [end for end in ends if not isinstance(end, BaseException)]
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return fired

    async def describe(self, raw: RawRequest) -> RawResponse:
        """Say where a key is at and how many wait on it."""
        key = raw.key()
        raw.permit.check_keys(Action.WAIT, (key,))
        raw.query(NO_QUERY)
        check_key(key)
        signals = self._purgatory.signals
        waiting = self._purgatory.waiting(key)
        document = {
            "key": key,
            "cursor": signals.cursor(signals.head()),
            "earliest": signals.cursor(signals.earliest(key)),
            # One process is everywhere, as long as signals are in its memory.
            "waiting": {"here": waiting, "everywhere": waiting},
        }
        return RawResponse.from_document(document)

    async def drop(self, raw: RawRequest) -> RawResponse:
        """End the key's waiters, and drop its history."""
        raw.permit.check(Access(Action.OPERATE))
        raw.query(NO_QUERY)
        cancelled = await self._purgatory.cancel(raw.key())
        signals = self._purgatory.signals
        document = {"cancelled": cancelled, "cursor": signals.cursor(signals.head())}
        return RawResponse.from_document(document)

    async def list_watched(self, raw: RawRequest) -> RawResponse:
        """List the keys that are watched, in order."""
        raw.permit.check(Access(Action.OPERATE))
        wrong = ParameterErrors()
        query = read_query(raw.query_string, LIST_QUERY, wrong)
        limit = wrong.read(whole_number, query, "limit", DEFAULT_LIST_LIMIT)
        prefix = query.get("prefix", "")
        wrong.read(_check_prefix, prefix)
        wrong.refuse()
        assert limit
        watched = self._purgatory.watched_keys()
        # One more than are told of: 100,000 may be watched, and are not all to be sorted.
        keys = nsmallest(limit + 1, (key for key in watched if key.startswith(prefix)))
        document = {
            "keys": [{"key": key, "waiting": watched[key]} for key in keys[:limit]],
            "more": len(keys) > limit,
        }
        return RawResponse.from_document(document)

    def _check_head(self, key: str, tags: EntityTags | None) -> None:
        """Raise Problem where `key` fired since each of the cursors that If-Match names."""
        if tags is None or tags.is_any:
            return
        check_key(key)
        signals = self._purgatory.signals
        last = signals.last(key)
        passed: list[str] = []
        refusals: list[PurgatoryError] = []
        for cursor in sorted(tag[1:-1].decode("latin-1") for tag in tags.strong_tags):
            try:
                if last <= signals.position(key, cursor):
                    return
                passed.append(cursor)
            except PurgatoryError as exc:
                # One of several may be of before a restart, and another be where the key is at.
                refusals.append(exc)
        if refusals and not passed:
            raise problem_of_error(refusals[0], "If-Match") from refusals[0]
        head = signals.cursor(last)
        raise Problem(
            "precondition-failed",
            f"key {key!r} has fired since the cursor {passed[0]!r}: it is at {head!r} now"
            if passed
            else "If-Match names weak tags only, which match nothing: leave out the W/",
            head=head,
        )

    def _check(self, index: int, item: BatchItem) -> None:
        try:
            check_key(item.key)
            self._purgatory.signals.encode(item.value)
        except InvalidKeyError as exc:
            raise bad_field((index, "key"), exc.detail, ALLOWED_KEY) from exc
        except InvalidValueError as exc:
            raise bad_field((index, "value"), exc.detail, ALLOWED_VALUE) from exc


def _check_prefix(prefix: str) -> None:
    """Raise Problem for what no key can begin with; all of them begin with nothing."""
    try:
        check_key(prefix or "any")
    except InvalidKeyError as exc:
        allowed = "up to 256 characters, none of them control"
        raise bad_parameter("prefix", f"no key begins with it: {exc.detail}", allowed) from exc


def _value(raw: RawRequest) -> Any:
    return parse_body(SignalBody, raw.body).value if raw.body else None


def _fired_json(fired: FireResult) -> bytes:
    return b'{"cursor":"%b","seq":%d,"completed":%d%b}' % (
        fired.cursor.encode(),
        fired.seq,
        fired.completed,
        b',"jobs":%d' % fired.jobs if fired.jobs else b"",
    )
