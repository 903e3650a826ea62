"""The routes of the dashboard: its page, snapshots, waits, and actions."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query

from purgatory.errors import PurgatoryError
from purgatory.fastapi.dashboard.snapshots import Snapshots, WorkerName
from purgatory.fastapi.dashboard.wait_list import (
    AFTER_PATTERN,
    ActionResult,
    ActionsBody,
    ActionsResponse,
    SortKey,
    WaitFilter,
    WaitList,
    WaitsResponse,
    actions_json,
    parse_after,
)
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.json_bodies import KeyText
from purgatory.fastapi.http.parameters import Prefix, WholeNumber
from purgatory.fastapi.http.requests import READ, Access, Action, Permit, RawRequest
from purgatory.fastapi.http.responses import (
    Problem,
    RawResponse,
    bad_parameter,
    release_frames,
)
from purgatory.fastapi.routing.endpoints import (
    EndpointContext,
    file_response,
    joined_in_turns,
)
from purgatory.fastapi.routing.routes import Responses, add_handler
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.log_text import escaped
from purgatory.turn_budget import TurnBudget

audit = logging.getLogger("purgatory.audit")

# The group of endpoints that an action is of; without it, the action does not exist here either.
_GROUPS: Final = {
    "fire": "keys",
    "drop-key": "keys",
    "cancel-job": "jobs",
    "run-job": "jobs",
    "retry-job": "jobs",
    "pause": "jobs",
    "resume": "jobs",
    "resume-all": "jobs",
}
# Characters of a target in a line of the log.
_MAX_LOGGED: Final = 300


class Actions:
    """Performs actions of operators, on one target after the other, and logs each.

    Every action needs OPERATE, and in addition the permission that the same action needs at its
    own endpoint: FIRE on the key, DEFER for jobs. Actions of a group of endpoints that the
    application does not offer are refused.
    """

    def __init__(self, context: EndpointContext, waits: WaitList, groups: frozenset[str]) -> None:
        """Act on the purgatory of `context`, of which the endpoints of `groups` are offered."""
        self._purgatory = context.purgatory
        self._waits = waits
        self._groups = groups

    async def dashboard_actions(self, raw: RawRequest, body: ActionsBody) -> ActionsResponse:
        """Act on keys, waits or jobs.

        Do one action on up to 500 targets. Each is logged by `purgatory.audit`.
        """
        # A refusal of one target does not keep the action from the others.
        for access in body.accesses():
            raw.permit.check(access)
        self._require_group(body.action)
        if body.action == "cancel-wait":
            results = await self._cancel_waits(raw, body.targets)
        else:
            results = []
            budget = TurnBudget()
            for target in body.targets:
                results.append(await self._act(raw, body, target))
                await budget.yield_if_spent()
        return ActionsResponse(results=results)

    def _require_group(self, action: str) -> None:
        group = _GROUPS.get(action)
        if group is not None and group not in self._groups:
            raise Problem(
                "forbidden",
                f"{action} is of the endpoints of {group}, which this application does not offer: "
                f"add {group!r} to install(endpoints=...)",
            )

    async def _act(self, raw: RawRequest, body: ActionsBody, target: str) -> ActionResult:
        try:
            detail, is_done = await self._done(raw, body, target), True
        except (PurgatoryError, Problem) as exc:
            problem = exc if isinstance(exc, Problem) else problem_of_error(exc)
            detail, is_done = problem.detail, False
            release_frames(exc)
        return _reported(raw, body.action, target, detail, is_done=is_done)

    async def _cancel_waits(self, raw: RawRequest, targets: Sequence[str]) -> list[ActionResult]:
        """End waits: all at once, as finding one looks at all that wait on its key."""
        otherwise = "the wait is over"
        ended = await self._waits.cancel_here(targets)
        try:
            async for each in self._waits.cancel_elsewhere(targets):
                ended |= each
        except PurgatoryError as exc:
            otherwise = problem_of_error(exc).detail
        results = []
        budget = TurnBudget()
        for target in targets:
            await budget.yield_if_spent()
            is_done = target in ended
            # A target that is given twice was ended once.
            ended.discard(target)
            detail = "the wait has ended as cancelled" if is_done else otherwise
            results.append(_reported(raw, "cancel-wait", target, detail, is_done=is_done))
        return results

    async def _done(self, raw: RawRequest, body: ActionsBody, target: str) -> str:
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


def _reported(
    raw: RawRequest, action: str, target: str, detail: str, *, is_done: bool
) -> ActionResult:
    """Return the result of an action on one target, with a line of it in the audit log."""
    audit.info(
        "%s: %s %s: %s",
        escaped(raw.permit.identity or raw.client or "anyone"),
        action,
        escaped(target[:_MAX_LOGGED]),
        escaped(detail),
        extra={
            "action": action,
            "identity": raw.permit.identity,
            "target": target[:_MAX_LOGGED],
            "is_done": is_done,
        },
    )
    return ActionResult(target=target, done=is_done, detail=detail)


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


def _session(permit: Permit, worker: WorkerName, groups: frozenset[str]) -> dict[str, Any]:
    """Return what the page may show to the client."""
    may_operate, has_keys = permit.allows(Access(Action.OPERATE)), "keys" in groups
    return {
        "identity": permit.identity,
        "worker": worker.name,
        "groups": sorted(groups),
        "may": {
            "operate": may_operate,
            "fire": may_operate and has_keys and permit.allows(Access(Action.FIRE)),
            "drop": may_operate and has_keys,
            "jobs": may_operate and permit.allows(Access(Action.DEFER)),
            "read_jobs": permit.allows(Access(Action.DEFER)),
        },
    }


def _after(text: str) -> SortKey:
    after = parse_after(text)
    if after is None:
        raise bad_parameter(
            "after",
            f"after is {text[:64]!r}, which no page ended with",
            "the `next` of the page before, as it is; left out for the first page",
        )
    return after


def add_dashboard_routes(router: APIRouter, registry: WaitRegistry, groups: frozenset[str]) -> None:
    """Add the routes of the dashboard to `router`, which offers the endpoints of `groups`."""
    context = registry.context
    worker = WorkerName()
    waits = WaitList(context.purgatory, worker, context.prefix)
    snapshots = Snapshots(context.purgatory, worker, context.prefix)
    page = Page()
    add = partial(add_handler, router, context)

    async def list_waits(
        key: Annotated[KeyText | None, Query(description="Only waits on this key.")] = None,
        prefix: Annotated[
            Prefix, Query(description="Only waits on keys that begin with this.")
        ] = "",
        order: Annotated[
            Literal["age", "deadline"],
            Query(description="`age`: the oldest first; `deadline`: those that expire next first."),
        ] = "age",
        limit: Annotated[WholeNumber, Query(description="Waits in the response.")] = 100,
        after: Annotated[
            str | None,
            Query(
                description="The `next` of the page before.",
                json_schema_extra={"maxLength": 64, "pattern": AFTER_PATTERN},
            ),
        ] = None,
    ) -> RawResponse:
        """List waits.

        List what waits now, in all processes that share signals.
        """
        where = WaitFilter(
            key=key,
            prefix=prefix,
            is_by_deadline=order == "deadline",
            limit=limit,
            after=None if after is None else _after(after),
        )
        rows, following = await waits.page(where)
        encoded = await joined_in_turns(json.dumps(row).encode() for row in rows)
        fields = encoded, json.dumps(following).encode()
        return RawResponse.from_json(200, b'{"waits":[%b],"next":%b}' % fields)

    async def dashboard_snapshot(raw: RawRequest) -> RawResponse:
        """Live statistics.

        Return a snapshot of the statistics of all workers, at most a second old.
        """
        latest = await snapshots.latest()
        session = json.dumps(_session(raw.permit, worker, groups)).encode()
        # Of the same bytes for all.
        return RawResponse.from_json(200, b'{"session":%b,%b' % (session, latest[1:]))

    add(
        "GET /waits",
        list_waits,
        READ,
        response_model=WaitsResponse,
        problems=("signals-unavailable",),
    )
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
        Actions(context, waits, groups).dashboard_actions,
        Access(Action.OPERATE),
        body=actions_json(context.purgatory.limits.max_value_bytes),
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


_NOT_MODIFIED: Final[Responses] = {304: {"description": "As the browser has it."}}
