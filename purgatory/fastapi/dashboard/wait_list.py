"""The list of waits, a page at a time, and ending a wait by its id in the list."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from secrets import token_bytes
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from pydantic import BaseModel, Field, PlainValidator, TypeAdapter

from purgatory.errors import PurgatoryError
from purgatory.event_loop.inspection import started_ms
from purgatory.fastapi.dashboard.snapshots import Workers
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.json_bodies import KeyText
from purgatory.fastapi.http.parameters import MAX_LIMIT, Prefix, WholeNumber, optional
from purgatory.fastapi.http.responses import bad_parameter
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.purgatory import Purgatory
from purgatory.turn_budget import TurnBudget

# Keys or operations that are looked at in one turn of the event loop: less than a millisecond.
SLICE: Final = 500
# The token of the worker, and the name of the wait there. In an id, the key follows.
_NAME: Final = r"[0-9a-f]{12}\.[0-9a-f]{16}"
_NAME_LENGTH: Final = 29
_AFTER: Final = rf"^(-?\d{{1,18}})\.({_NAME})$"

Place = tuple[int, str]
"""Where a wait is in a list: a time, and its name."""
Order = Literal["age", "deadline"]
# Larger ones are read as floats by browsers, or not at all.
_Number = Annotated[int, Field(gt=-(2**53), lt=2**53)]


class ListedWait(BaseModel):
    """A wait that is pending."""

    id: str = Field(
        description="Names the wait in the actions of the dashboard.", pattern=rf"^{_NAME}\."
    )
    worker: str = Field(description="The process: host and process id.", examples=["web-1:42"])
    key: str = Field(description="The key; the first that matches, of several.")
    keys: _Number = Field(description="How many keys it waits for.")
    kind: str = Field(
        description="`watch`: a request; `long-poll`: an endpoint behind the middleware; `park`: "
        "the application itself; others are the application's own.",
        examples=["watch"],
    )
    client: str | None = Field(
        description="The identity or the address of the client, as far as it is known.",
    )
    wait_id: str | None = Field(description="The Wait-Id that the client gave.")
    since_ms: _Number = Field(description="When it began: milliseconds since 1970, UTC.")
    deadline_ms: _Number = Field(description="When it expires: milliseconds since 1970, UTC.")
    age_ms: _Number = Field(description="How long it has waited.")
    remaining_ms: _Number = Field(description="How long it waits on, if nothing fires.")


class WaitsResponse(BaseModel):
    """A page of waits."""

    waits: list[ListedWait] = Field(description="In the order asked for.")
    next: str | None = Field(description="The `after` of the next page; null on the last one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFilter:
    """The filter and the order of a page of waits."""

    key: str | None = None
    """Only those on this key."""
    prefix: str = ""
    """Only those on keys that begin with this."""
    order: Order = "age"
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 100
    after: Place | None = None
    """That of the last wait of the page before."""

    def place(self, wait: ListedWait) -> Place:
        """Return where a wait is in this order."""
        at_ms = wait.deadline_ms if self.order == "deadline" else wait.since_ms
        return at_ms, wait.id[:_NAME_LENGTH]


def _parse_after(text: str) -> Place:
    match = re.fullmatch(_AFTER, text)
    if match is None:
        raise bad_parameter(
            "after",
            f"after is {text[:64]!r}, which no page ended with",
            "the `next` of the page before, as it is; left out for the first page",
        )
    return int(match[1]), match[2]


_FILTER: Final = TypeAdapter(WaitFilter)
_ROWS: Final = TypeAdapter(list[ListedWait])
_IDS: Final = TypeAdapter(list[str])


class WaitList:
    """Lists the waits of a purgatory in all processes that share its signals, and ends them.

    A page sorts the waits of this process in slices, so that it does not hold up the event loop.
    """

    def __init__(self, purgatory: Purgatory, workers: Workers) -> None:
        """List the waits of `purgatory`, and those of the other `workers`."""
        self._workers = workers
        self._inspection = purgatory.inspection()
        self._secret = token_bytes(16)
        workers.answer_with("waits", self._answer)
        workers.answer_with("cancel-listed-waits", self._answer_cancel)

    async def list_waits(
        self,
        key: Annotated[KeyText | None, Query(description="Only waits on this key.")] = None,
        prefix: Annotated[
            Prefix, Query(description="Only waits on keys that begin with this.")
        ] = "",
        order: Annotated[
            Order,
            Query(description="`age`: the oldest first; `deadline`: those that expire next first."),
        ] = "age",
        limit: Annotated[WholeNumber, Query(description="Waits in the response.")] = 100,
        after: Annotated[
            Any,
            PlainValidator(_parse_after),
            optional({"maxLength": 64, "pattern": _AFTER}),
            Query(description="The `next` of the page before."),
        ] = None,
    ) -> WaitsResponse:
        """List waits.

        List what waits now, in all processes that share signals.
        """
        where = WaitFilter(key=key, prefix=prefix, order=order, limit=limit, after=after)
        rows = await self._rows(where)
        others, _ = await self._workers.ask("waits", _FILTER.dump_json(where).decode(), _ROWS)
        first = nsmallest(limit + 1, (row for each in (rows, *others) for row in each), where.place)
        if len(first) <= limit:
            return WaitsResponse(waits=first, next=None)
        at_ms, name = where.place(first[limit - 1])
        return WaitsResponse(waits=first[:limit], next=f"{at_ms}.{name}")

    async def cancel(self, ids: Sequence[str]) -> tuple[set[str], str]:
        """End waits by their ids in the list, of whichever process.

        Return the ids of those that it has ended, and why not the others.
        """
        ended = await self._cancel_here(ids)
        others = [each for each in ids if not each.startswith(self._workers.token)]
        try:
            if others:
                argument = _IDS.dump_json(others).decode()
                found, _ = await self._workers.ask("cancel-listed-waits", argument, _IDS)
                ended.update(*found)
        except PurgatoryError as exc:
            return ended, problem_of_error(exc).detail
        return ended, "the wait is over"

    async def _rows(self, where: WaitFilter) -> list[ListedWait]:
        """Return the first rows of this process, and one more than the limit if there are more."""
        inspection, is_by_deadline = self._inspection, where.order == "deadline"
        found: list[tuple[Place, str, DelayedOperation]] = []
        # Later ones are not among the first, of which there are enough.
        last_ms = sys.maxsize
        matching = self._matching(where)
        while some := list(islice(matching, SLICE)):
            for key, operation in some:
                if operation is None or operation.is_completed:
                    continue
                at_ms = operation.expiration_ms if is_by_deadline else started_ms(operation)
                if at_ms > last_ms:
                    continue
                place = inspection.wall_ms(at_ms), self._name(operation)
                if where.after is None or place > where.after:
                    found.append((place, key, operation))
            found = nsmallest(where.limit + 1, found, key=itemgetter(0))
            if len(found) > where.limit:
                last_ms = found[-1][0][0] - inspection.wall_ms(0)
            await asyncio.sleep(0)
        rows: list[ListedWait] = []
        budget = TurnBudget()
        for (_, name), key, operation in found:
            await budget.yield_if_spent()
            if not operation.is_completed:
                rows.append(self._row(name, key, operation))
        return rows

    def _matching(self, where: WaitFilter) -> Iterator[tuple[str, DelayedOperation | None]]:
        """Yield each wait once, under the first of its keys that matches; None to give way."""
        is_any, prefix = where.key is None, where.prefix
        for key in self._inspection.watched() if where.key is None else (where.key,):
            if not key.startswith(prefix):
                yield "", None
                continue
            for operation in self._inspection.watching(key):
                keys = operation.keys
                matching = (each for each in keys if str(each).startswith(prefix))
                # There is none if it has just ended.
                if not is_any or len(keys) == 1 or key == next(matching, None):
                    yield key, operation

    def _row(self, name: str, key: str, operation: DelayedOperation) -> ListedWait:
        inspection = self._inspection
        now_ms, start_ms = inspection.now_ms(), started_ms(operation)
        client = getattr(operation, "client", None)
        wait_id = getattr(operation, "wait_id", None)
        return ListedWait(
            id=f"{name}.{key}",
            worker=self._workers.name,
            key=key,
            keys=len(operation.keys),
            kind=str(getattr(operation, "kind", type(operation).__name__)),
            client=None if client is None else str(client),
            # Without its owner, as the client gave it.
            wait_id=None if wait_id is None else str(wait_id).rpartition("/")[2],
            since_ms=inspection.wall_ms(start_ms),
            deadline_ms=inspection.wall_ms(operation.expiration_ms),
            age_ms=max(0, now_ms - start_ms),
            remaining_ms=operation.expiration_ms - now_ms,
        )

    def _name(self, operation: DelayedOperation) -> str:
        """Return a name of a wait that reveals nothing, as an address would."""
        # With its times: the address alone may belong to another operation soon.
        identity = b"%x %d %d" % (id(operation), operation.expiration_ms, operation.delay_ms)
        name = blake2b(identity, digest_size=8, key=self._secret).hexdigest()
        return f"{self._workers.token}.{name}"

    async def _cancel_here(self, ids: Sequence[str]) -> set[str]:
        """End waits of this process. Those of a key are looked at once for all ids, in slices."""
        wanted: dict[str, set[str]] = {}
        for each in ids:
            name, key = each[:_NAME_LENGTH], each[_NAME_LENGTH + 1 :]
            if name.startswith(self._workers.token):
                wanted.setdefault(key, set()).add(name)
        ended: set[str] = set()
        for key, names in wanted.items():
            for number, operation in enumerate(self._inspection.watching(key), 1):
                name = self._name(operation)
                if name in names and operation.cancel():
                    ended.add(f"{name}.{key}")
                if number % SLICE == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        return ended

    async def _answer(self, argument: str) -> str:
        where = _FILTER.validate_json(argument, strict=True)
        return _ROWS.dump_json(await self._rows(where)).decode()

    async def _answer_cancel(self, argument: str) -> str:
        ended = await self._cancel_here(_IDS.validate_json(argument, strict=True))
        return _IDS.dump_json(sorted(ended)).decode()
