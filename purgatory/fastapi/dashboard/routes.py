"""The dashboard's routes: its page, snapshots, the list of waits, and actions of operators.

The list of waits comes a page at a time, and a wait is ended by its id there. An action is done on
many targets, each with a line in the audit log.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from heapq import nsmallest
from importlib.resources import files
from itertools import islice
from operator import itemgetter
from secrets import token_bytes
from typing import Annotated, Any, Final, Literal, get_args

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, TypeAdapter
from pydantic_core import to_json

from purgatory.errors import PurgatoryError
from purgatory.event_loop.inspection import started_ms
from purgatory.fastapi.dashboard.snapshots import Snapshots, Workers
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.json_bodies import ESCAPED, JsonBody, KeyText, RequestBody
from purgatory.fastapi.http.parameters import MAX_LIMIT, Prefix, WholeNumber, optional
from purgatory.fastapi.http.requests import READ, Access, Action, Permit, RawRequest
from purgatory.fastapi.http.responses import Problem, RawResponse, bad_parameter, release_frames
from purgatory.fastapi.routing.endpoints import file_response
from purgatory.fastapi.routing.routes import Responses, add_handler
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.log_text import escaped
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


audit = logging.getLogger("purgatory.audit")

# Characters: the id of a wait has its key.
MAX_TARGET: Final = 512
# Bytes of all targets: of as many ids of waits on the longest keys in ASCII.
TARGETS_ROOM: Final = 144 * 1024
# Characters of a target in a line of the log.
_MAX_LOGGED: Final = 300

_OnKeys = Literal["fire", "drop-key"]
_OnJobs = Literal["cancel-job", "run-job", "retry-job", "pause", "resume", "resume-all"]
ActionName = Literal["cancel-wait", _OnKeys, _OnJobs]


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
        min_length=1, max_length=500, description="What to act on, each on its own."
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


class Actions:
    """Performs actions of operators, on one target after the other, and logs each.

    Every action needs OPERATE, and in addition the permission that the same action needs at its
    own endpoint: FIRE on the key, DEFER for jobs. Actions of a group of endpoints that the
    application does not offer are refused.
    """

    def __init__(self, purgatory: Purgatory, waits: WaitList, groups: frozenset[str]) -> None:
        """Act on `purgatory` and its `waits`, where the endpoints of `groups` are offered."""
        self._purgatory = purgatory
        self._waits = waits
        self._groups = groups

    async def dashboard_actions(self, raw: RawRequest, body: ActionsBody) -> ActionsResponse:
        """Act on keys, waits or jobs.

        Do one action on up to 500 targets. Each is logged by `purgatory.audit`.
        """
        # A refusal of one target does not keep the action from the others.
        for access in body.accesses():
            raw.permit.check(access)
        group = "keys" if body.action in get_args(_OnKeys) else "jobs"
        if body.action != "cancel-wait" and group not in self._groups:
            raise Problem(
                "forbidden",
                f"{body.action} is of the endpoints of {group}, which this application does not "
                f"offer: add {group!r} to install(endpoints=...)",
            )
        ended, otherwise = set[str](), ""
        if body.action == "cancel-wait":
            # All at once, as finding one looks at all that wait on its key.
            ended, otherwise = await self._waits.cancel(body.targets)
        results = []
        budget = TurnBudget()
        for target in body.targets:
            detail, is_done = otherwise, False
            try:
                if body.action != "cancel-wait":
                    detail, is_done = await self._act(raw, body, target), True
                elif target in ended:
                    # A target that is given twice was ended once.
                    ended.remove(target)
                    detail, is_done = "the wait has ended as cancelled", True
            except PurgatoryError as exc:
                detail = problem_of_error(exc).detail
                release_frames(exc)
            _log(raw, body.action, target, detail, is_done=is_done)
            results.append(ActionResult(target=target, done=is_done, detail=detail))
            await budget.yield_if_spent()
        return ActionsResponse(results=results)

    async def _act(self, raw: RawRequest, body: ActionsBody, target: str) -> str:
        """Do the action on one target, and return what happened; raise PurgatoryError."""
        purgatory = self._purgatory
        match body.action:
            case "fire":
                fired = await purgatory.fire(target, body.value, owner=raw.permit.identity)
                jobs = f", and decided {fired.jobs} jobs" if fired.jobs else ""
                return f"ended {fired.completed} waits of this worker{jobs}"
            case "drop-key":
                return f"cancelled {await purgatory.cancel(target)} waits of this worker"
            case "cancel-job":
                return f"it is {(await purgatory.jobs.cancel(target)).state}"
            case "run-job":
                job = await purgatory.jobs.run_now(target)
                if (await purgatory.jobs.paused()).covers(job.handler):
                    return f"its handler {job.handler} is paused: it starts once that is resumed"
                return "it is due now"
            case "retry-job":
                await purgatory.jobs.retry(target)
                return "it is due now, with all its attempts"
            case "pause":
                await purgatory.jobs.pause(target)
                return "no more of its jobs are started, in any worker"
        resumed = await purgatory.jobs.resume(None if body.action == "resume-all" else target)
        return f"{resumed} jobs had waited for that"


def _log(raw: RawRequest, action: str, target: str, detail: str, *, is_done: bool) -> None:
    identity, target = raw.permit.identity, target[:_MAX_LOGGED]
    audit.info(
        "%s: %s %s: %s",
        escaped(identity or raw.client or "anyone"),
        action,
        escaped(target),
        escaped(detail),
        extra={"action": action, "identity": identity, "target": target, "is_done": is_done},
    )


PAGE: Final = "dashboard.html"
_FOLDER: Final = files("purgatory.fastapi.dashboard") / "static"
_MEDIA_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
TYPES: Final = {
    each.name: _MEDIA_TYPES[suffix]
    for each in _FOLDER.iterdir()
    if (suffix := each.name.rpartition(".")[2]) in _MEDIA_TYPES
}
"""The files, and their media types."""
# No script and no style but those files, no framing, no form that leaves: what a key or a client
# is called stays text even if the page had a fault.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


class Page:
    """Serves the files of the page, which contain no data."""

    def __init__(self) -> None:
        """Read the files: some 50 KB."""
        self._files = {name: (_FOLDER / name).read_bytes() for name in TYPES}
        self._tags = {
            name: f'"{hashlib.sha256(body).hexdigest()[:16]}"' for name, body in self._files.items()
        }

    async def dashboard(self, raw: RawRequest) -> RawResponse:
        """The dashboard.

        Return the page of the dashboard, for a browser.
        """
        return self._response(raw, PAGE)

    async def dashboard_file(
        self,
        raw: RawRequest,
        file: Annotated[str, Path(description="A file of the page.", examples=["dashboard.js"])],
    ) -> RawResponse:
        """A file of the dashboard.

        Return a script or a style of the dashboard.
        """
        if file not in self._files:
            raise Problem("not-found", f"the dashboard has no file {file[:64]!r}")
        return self._response(raw, file)

    def _response(self, raw: RawRequest, name: str) -> RawResponse:
        headers = {
            "Content-Type": TYPES[name],
            "ETag": self._tags[name],
            # Asked for each time, and sent again only if another version is installed.
            "Cache-Control": "no-cache",
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        return file_response(raw, self._files[name], headers)


def _session(permit: Permit, groups: frozenset[str]) -> dict[str, Any]:
    """Return what the page may show to the client."""
    may_operate, has_keys = permit.allows(Access(Action.OPERATE)), "keys" in groups
    may_defer = permit.allows(Access(Action.DEFER))
    return {
        "has_jobs": "jobs" in groups,
        "may": {
            "operate": may_operate,
            "fire": may_operate and has_keys and permit.allows(Access(Action.FIRE)),
            "drop": may_operate and has_keys,
            "jobs": may_operate and may_defer,
            "read_jobs": may_defer,
        },
    }


_NOT_MODIFIED: Final[Responses] = {304: {"description": "As the browser has it."}}


def add_dashboard_routes(router: APIRouter, registry: WaitRegistry, groups: frozenset[str]) -> None:
    """Add the routes of the dashboard to `router`, which offers the endpoints of `groups`."""
    context = registry.context
    purgatory = context.purgatory
    workers = Workers(purgatory, context.prefix)
    waits, snapshots = WaitList(purgatory, workers), Snapshots(purgatory, workers)
    page = Page()
    add = partial(add_handler, router, context)

    async def dashboard_snapshot(raw: RawRequest) -> RawResponse:
        """Live statistics.

        Return a snapshot of the statistics of all workers, at most a second old.
        """
        latest = await snapshots.latest()
        session = to_json(_session(raw.permit, groups))
        # Of the same bytes for all.
        return RawResponse.from_json(200, b'{"session":%b,%b' % (session, latest[1:]))

    add("GET /waits", waits.list_waits, READ, problems=("signals-unavailable",))
    add(
        "GET /dashboard",
        page.dashboard,
        None,
        allows_head=True,
        response_description="The page.",
        responses={200: {"content": {"text/html": {}}}, **_NOT_MODIFIED},
    )
    add(
        "GET /dashboard/snapshot",
        dashboard_snapshot,
        READ,
        response_description="The statistics, and what the client may do.",
        responses={200: {"content": {"application/json": {}}}},
        problems=("not-open",),
    )
    add(
        "POST /dashboard/actions",
        Actions(purgatory, waits, groups).dashboard_actions,
        Access(Action.OPERATE),
        body=actions_json(purgatory.limits.max_value_bytes),
    )
    types = (each.partition(";")[0] for each in _MEDIA_TYPES.values())
    add(
        "GET /dashboard/static/{file}",
        page.dashboard_file,
        None,
        allows_head=True,
        response_description="The file.",
        responses={200: {"content": {each: {} for each in types}}, **_NOT_MODIFIED},
        problems=("not-found",),
    )
