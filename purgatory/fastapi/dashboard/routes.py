"""The routes of the dashboard: its page, snapshots, waits, and actions."""

from __future__ import annotations

import hashlib
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path
from pydantic_core import to_json

from purgatory.fastapi.dashboard.actions import Actions, actions_json
from purgatory.fastapi.dashboard.snapshots import Snapshots, Workers
from purgatory.fastapi.dashboard.wait_list import WaitList
from purgatory.fastapi.http.requests import READ, Access, Action, Permit, RawRequest
from purgatory.fastapi.http.responses import Problem, RawResponse
from purgatory.fastapi.routing.endpoints import file_response
from purgatory.fastapi.routing.routes import Responses, add_handler
from purgatory.fastapi.watch.parked_requests import WaitRegistry

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
