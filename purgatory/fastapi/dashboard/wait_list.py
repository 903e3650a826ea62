"""The list of waits, a page at a time, and ending a wait by its id in the list."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BinasciiError
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from heapq import nsmallest
from secrets import token_bytes
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from purgatory.event_loop.inspection import Inspection, started_ms
from purgatory.fastapi.dashboard.snapshots import WorkerName, log_malformed
from purgatory.fastapi.http.json_bodies import ESCAPED, JsonBody, RequestBody
from purgatory.fastapi.http.parameters import MAX_LIMIT
from purgatory.fastapi.http.requests import Access, Action
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.purgatory import Purgatory
from purgatory.turn_budget import TurnBudget

MAX_TARGETS: Final = 500
# Characters: the id of a wait has its key, in Base64.
MAX_TARGET: Final = 2048
# Bytes of all targets: of as many ids of waits on the longest keys in ASCII.
TARGETS_ROOM: Final = 192 * 1024

ActionName = Literal[
    "fire",
    "drop-key",
    "cancel-wait",
    "cancel-job",
    "run-job",
    "retry-job",
    "pause",
    "resume",
    "resume-all",
]


class ListedWait(BaseModel):
    """A wait that is pending."""

    id: str = Field(description="Names the wait in the actions of the dashboard.")
    worker: str = Field(description="The process: host and process id.", examples=["web-1:42"])
    key: str = Field(description="The key; the first that matches, of several.")
    keys: int = Field(description="How many keys it waits for.")
    kind: str = Field(
        description="`watch`: a request; `long-poll`: an endpoint behind the middleware; `park`: "
        "the application itself; others are the application's own.",
        examples=["watch"],
    )
    client: str | None = Field(
        description="The identity or the address of the client, as far as it is known.",
    )
    wait_id: str | None = Field(description="The Wait-Id that the client gave.")
    since_ms: int = Field(description="When it began: milliseconds since 1970, UTC.")
    deadline_ms: int = Field(description="When it expires: milliseconds since 1970, UTC.")
    age_ms: int = Field(description="How long it has waited.")
    remaining_ms: int = Field(description="How long it waits on, if nothing fires.")


class WaitsResponse(BaseModel):
    """A page of waits."""

    waits: list[ListedWait] = Field(description="In the order asked for.")
    next: str | None = Field(description="The `after` of the next page; null on the last one.")


class ActionsBody(RequestBody):
    """One action on one or more targets."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"action": "fire", "targets": ["order:42:paid"]}]}
    )

    action: ActionName = Field(
        description="`fire` and `drop-key` take keys, `cancel-wait` the ids of listed waits, "
        "`pause` and `resume` names of handlers, `-job` ids of jobs. `resume-all` ends a pause of "
        "all handlers; its target is only logged."
    )
    targets: list[Annotated[str, Field(min_length=1, max_length=MAX_TARGET)]] = Field(
        min_length=1, max_length=MAX_TARGETS, description="What to act on, each on its own."
    )
    value: Any = Field(None, description="The value to fire with; for `fire` only.")

    def accesses(self) -> Iterator[Access]:
        """Yield the access that it needs besides OPERATE."""
        for target in self.targets:
            if self.action == "fire":
                yield Access(Action.FIRE, target)
            elif self.action == "drop-key":
                yield Access(Action.OPERATE, target)
            elif self.action.endswith("-job"):
                yield Access(Action.DEFER, job=target)


class ActionResult(BaseModel):
    """The result of an action on one target."""

    target: str = Field(description="As in the request.")
    done: bool = Field(description="False if it was refused.")
    detail: str = Field(description="What happened, or why it was refused.")


class ActionsResponse(BaseModel):
    """The results."""

    results: list[ActionResult] = Field(description="In the order of the targets.")


def actions_json(max_value_bytes: int) -> JsonBody[ActionsBody]:
    """Return the body of actions: many short targets, and a value."""
    return JsonBody(ActionsBody, max_bytes=ESCAPED * (max_value_bytes + TARGETS_ROOM))


# Keys or operations that are looked at in one turn of the event loop: less than a millisecond.
SLICE: Final = 500
# Characters of the ids in one message to the other processes.
_MAX_MESSAGE: Final = 64 * 1024
_ID: Final = re.compile(r"([0-9a-f]{12})\.([0-9a-f]{16})\.([A-Za-z0-9_-]{2,1400})")
AFTER_PATTERN: Final = r"^(-?\d{1,18})\.([0-9a-f]{12})\.([0-9a-f]{16})$"
_AFTER: Final = re.compile(AFTER_PATTERN)

# A time, the token of the worker, and the name of the wait there.
SortKey = tuple[int, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFilter:
    """The filter and the order of a page of waits."""

    key: str | None = None
    """Only those on this key."""
    prefix: str = ""
    """Only those on keys that begin with this."""
    is_by_deadline: bool = False
    """By deadline, the first ones to expire first; otherwise by age, the oldest first."""
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 100
    after: SortKey | None = None
    """The last wait of the page before."""


class WaitList:
    """Lists the waits of a purgatory in all processes that share its signals, and ends them.

    A page sorts the waits of this process in slices, so that it does not hold up the event loop.
    """

    def __init__(self, purgatory: Purgatory, worker: WorkerName, prefix: str) -> None:
        """List the waits of `purgatory`, whose endpoints are under `prefix`."""
        self._worker = worker
        self._prefix = prefix
        self._shared = purgatory.shared_signals
        self._inspection: Inspection = purgatory.inspection()
        self._secret = token_bytes(16)
        if self._shared is not None:
            self._shared.peers.text_answers[f"waits {prefix}"] = self._answer
            self._shared.peers.text_answers[f"cancel-listed-waits {prefix}"] = self._answer_cancel

    async def page(self, where: WaitFilter) -> tuple[list[dict[str, Any]], str | None]:
        """Return the rows of a page, and the `after` of the next one, None if there is none.

        A process that does not answer within a second is left out. Raises SignalsUnavailableError.
        """
        rows = await self.rows(where)
        if self._shared is not None:
            texts = await self._shared.peers.ask_texts(
                f"waits {self._prefix}", json.dumps(asdict(where))
            )
            for text in texts:
                rows += _peer_rows(text)
        rows = nsmallest(where.limit + 1, rows, key=lambda row: tuple(row["sort"]))
        is_last = len(rows) <= where.limit
        rows = rows[: where.limit]
        following = None if is_last else after_text(rows[-1]["sort"])
        for row in rows:
            del row["sort"]
        return rows, following

    async def rows(self, where: WaitFilter) -> list[dict[str, Any]]:
        """Return the first rows of this process, and one more than the limit if there are more."""
        wall_offset_ms = self._inspection.wall_ms(0)
        # Later ones are not among the first, of which there are enough.
        last_ms = sys.maxsize
        found: list[tuple[SortKey, str, DelayedOperation]] = []
        looked_at = 0
        for key, operation in self._matching(where):
            looked_at += 1
            if looked_at % SLICE == 0:
                await asyncio.sleep(0)
            if operation is None or operation.is_completed:
                continue
            at_ms = operation.expiration_ms + wall_offset_ms
            if not where.is_by_deadline:
                at_ms -= operation.delay_ms
            if at_ms > last_ms:
                continue
            sort = (at_ms, self._worker.token, self._name(operation))
            if where.after is None or sort > where.after:
                found.append((sort, key, operation))
            if len(found) >= 4 * (where.limit + 1):
                found = nsmallest(where.limit + 1, found, key=_sort_of)
                last_ms = found[-1][0][0]
        first = nsmallest(where.limit + 1, found, key=_sort_of)
        rows: list[dict[str, Any]] = []
        budget = TurnBudget()
        for sort, key, operation in first:
            await budget.yield_if_spent()
            if not operation.is_completed:
                rows.append(self._row(sort, key, operation))
        return rows

    async def cancel_here(self, ids: Iterable[str]) -> set[str]:
        """End waits of this process by their ids in the list; return the ids of those it ended.

        The waits of a key are looked at once for all ids on it, in slices.
        """
        wanted: dict[str, dict[str, str]] = {}
        for wait_id in ids:
            found = self._parsed_id(wait_id)
            if found is not None:
                key, name = found
                wanted.setdefault(key, {})[name] = wait_id
        ended: set[str] = set()
        for key, by_name in wanted.items():
            for number, each in enumerate(self._inspection.watching(key), 1):
                wait_id = by_name.get(self._name(each), "")
                if wait_id and each.cancel():
                    ended.add(wait_id)
                if number % SLICE == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        return ended

    async def cancel_elsewhere(self, ids: Iterable[str]) -> AsyncIterator[set[str]]:
        """End waits of other processes by their ids in the list; yield the ids of those it ended.

        It asks for a part of them at a time. Raises SignalsUnavailableError.
        """
        if self._shared is None:
            return
        question = f"cancel-listed-waits {self._prefix}"
        others = (each for each in ids if not each.startswith(self._worker.token))
        for batch in _batches(others):
            for text in await self._shared.peers.ask_texts(question, json.dumps(batch)):
                yield set(_ids(text))

    def _parsed_id(self, wait_id: str) -> tuple[str, str] | None:
        """Return key and name of a wait of this process; None for any other text."""
        match = _ID.fullmatch(wait_id)
        if match is None or match[1] != self._worker.token:
            return None
        try:
            key = urlsafe_b64decode(match[3] + "=" * (-len(match[3]) % 4)).decode()
        except (BinasciiError, UnicodeDecodeError):
            return None
        return key, match[2]

    def _matching(self, where: WaitFilter) -> Iterator[tuple[str, DelayedOperation | None]]:
        """Yield each wait once, under the first of its keys that matches; None to give way."""
        inspection, prefix = self._inspection, where.prefix
        if where.key is not None:
            for operation in inspection.watching(where.key):
                yield where.key, operation
            return
        for key in inspection.watched():
            if not key.startswith(prefix):
                yield "", None
                continue
            for operation in inspection.watching(key):
                keys = operation.keys
                if len(keys) == 1 or key == _first(keys, prefix):
                    yield key, operation

    def _row(self, sort: SortKey, key: str, operation: DelayedOperation) -> dict[str, Any]:
        inspection = self._inspection
        now_ms, start_ms = inspection.now_ms(), started_ms(operation)
        named = getattr(operation, "wait_id", None)
        return {
            "sort": sort,
            "id": self._id(key, operation),
            "worker": self._worker.name,
            "key": key,
            "keys": len(operation.keys),
            "kind": str(getattr(operation, "kind", type(operation).__name__)),
            "client": getattr(operation, "client", None),
            # Without its owner, as the client gave it.
            "wait_id": None if named is None else str(named).rpartition("/")[2],
            "since_ms": inspection.wall_ms(start_ms),
            "deadline_ms": inspection.wall_ms(operation.expiration_ms),
            "age_ms": max(0, now_ms - start_ms),
            "remaining_ms": operation.expiration_ms - now_ms,
        }

    def _id(self, key: str, operation: DelayedOperation) -> str:
        encoded = urlsafe_b64encode(key.encode()).decode().rstrip("=")
        return f"{self._worker.token}.{self._name(operation)}.{encoded}"

    def _name(self, operation: DelayedOperation) -> str:
        """Return a name of a wait of this process that reveals nothing, as an address would."""
        # With its times: the address alone may belong to another operation soon.
        identity = b"%x %d %d" % (id(operation), operation.expiration_ms, operation.delay_ms)
        return blake2b(identity, digest_size=8, key=self._secret).hexdigest()

    async def _answer(self, argument: str) -> str:
        where = _FILTER.validate_json(argument, strict=True)
        return json.dumps(await self.rows(where))

    async def _answer_cancel(self, argument: str) -> str:
        return json.dumps(sorted(await self.cancel_here(_ids(argument))))


class _PeerRow(ListedWait):
    """A row of another process, with its place in the order."""

    model_config = ConfigDict(strict=True, extra="forbid")

    sort: SortKey

    @model_validator(mode="after")
    def _has_small_numbers(self) -> Self:
        # Others are read as floats by browsers, or not at all.
        numbers = [each for each in self.__dict__.values() if isinstance(each, int)]
        if any(abs(each) >= 2**53 for each in (*numbers, self.sort[0])):
            raise ValueError("a number is out of bounds")
        return self


_FILTER: Final = TypeAdapter(WaitFilter)
_ROWS: Final = TypeAdapter(list[_PeerRow])
_IDS: Final = TypeAdapter(list[str])


def _peer_rows(text: str) -> list[dict[str, Any]]:
    """Return the rows that another process sent; none if they are not rows."""
    try:
        return [row.model_dump() for row in _ROWS.validate_json(text)]
    except ValueError as exc:
        log_malformed("list of waits", exc)
        return []


def _ids(text: str) -> list[str]:
    """Return the ids that another process sent; none if they are not ids."""
    try:
        return _IDS.validate_json(text, strict=True)
    except ValueError as exc:
        log_malformed("list of ids", exc)
        return []


def after_text(sort: SortKey) -> str:
    """Return the `after` of the page that follows a row."""
    at_ms, token, name = sort
    return f"{at_ms}.{token}.{name}"


def parse_after(text: str) -> SortKey | None:
    """Return the values in a text of `after_text`; None for any other text."""
    match = _AFTER.fullmatch(text)
    return None if match is None else (int(match[1]), match[2], match[3])


def _batches(ids: Iterable[str]) -> Iterator[list[str]]:
    """Yield the ids, as many at once as a message between processes should have."""
    batch: list[str] = []
    size = 0
    for each in ids:
        size += len(each)
        if batch and size > _MAX_MESSAGE:
            yield batch
            batch, size = [], len(each)
        batch.append(each)
    if batch:
        yield batch


def _first(keys: tuple[Hashable, ...], prefix: str) -> Hashable:
    """Return the first key that begins with `prefix`; None if the wait has just ended."""
    return next((each for each in keys if str(each).startswith(prefix)), None)


def _sort_of(item: tuple[SortKey, str, DelayedOperation]) -> SortKey:
    return item[0]
