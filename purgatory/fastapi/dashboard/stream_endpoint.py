"""The live stream of snapshots, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from purgatory.errors import PurgatoryClosedError
from purgatory.fastapi.dashboard.parameters import SNAPSHOTS, STREAM
from purgatory.fastapi.dashboard.snapshots import Snapshots
from purgatory.fastapi.dashboard.worker_name import WorkerName
from purgatory.fastapi.http.asgi_request import AsgiRequest
from purgatory.fastapi.http.authorization import READ, Access, Action, Permit
from purgatory.fastapi.http.eager_send import ResponseUnreadError, send_or_give_up, sending
from purgatory.fastapi.http.problems import Problem, draining_problem
from purgatory.fastapi.routing.admission import AdmittingEndpoint
from purgatory.fastapi.routing.endpoint_context import EndpointContext
from purgatory.fastapi.routing.endpoint_spec import EndpointSpec
from purgatory.fastapi.watch.interruptible_receive import DisconnectListener, may_have_body
from purgatory.fastapi.watch.per_client_limit import PerClientLimit

# A snapshot of many workers takes some 100 KB in memory until its viewer has read it.
MAX_VIEWERS: Final = 32
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class StreamEndpoint(AdmittingEndpoint):
    """Streams snapshots to viewers: each gets the latest one, however many it has missed."""

    def __init__(
        self,
        context: EndpointContext,
        spec: EndpointSpec,
        snapshots: Snapshots,
        worker: WorkerName,
        groups: frozenset[str],
        max_stream: float,
        clients: PerClientLimit,
    ) -> None:
        """Stream `snapshots` for up to `max_stream` seconds, for a page that may use `groups`."""
        super().__init__(context, spec)
        self._clients = clients
        self._max_stream = max_stream
        self._snapshots = snapshots
        self._worker = worker
        self._groups = groups
        # How many each client has open. Invariant: all(self._open.values())
        self._open: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the client leaves or the process drains."""
        raw = AsgiRequest(scope, "")
        refused, limit = self.admit(raw), None
        if refused is None:
            try:
                raw.permit.check(READ)
                limit = STREAM.parse(raw)[SNAPSHOTS]
                self._require_room(client := self._clients.key_of_raw(raw))
            except Exception as exc:
                refused = self.error_response(raw, exc)
        if refused is not None:
            await send_or_give_up(send, refused, self.context.unread)
            return
        viewer = _Viewer(self._snapshots, receive, send, self.context)
        if not may_have_body(scope):
            await viewer.read_empty_body()
        self._open[client] = self._open.get(client, 0) + 1
        try:
            with suppress(ResponseUnreadError):
                await viewer.serve(self._session(raw.permit), limit, self._max_stream)
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def _require_room(self, client: str) -> None:
        purgatory = self.context.purgatory
        if purgatory.is_draining:
            raise draining_problem()
        if not purgatory.is_open:
            raise PurgatoryClosedError
        own, total = self._open.get(client, 0), sum(self._open.values())
        # As many as are left for others: one client cannot keep everyone else out.
        if own >= MAX_VIEWERS - total:
            raise Problem(
                "full",
                f"you have {own} dashboards open at this process, and everyone together {total} "
                f"(limit {MAX_VIEWERS}, of which a client may have as many as it leaves): "
                "close one",
                headers={"Retry-After": "5"},
            )

    def _session(self, permit: Permit) -> dict[str, Any]:
        """Return what the page may show: the first event."""
        may_operate, has_keys = permit.allows(Access(Action.OPERATE)), "keys" in self._groups
        return {
            "identity": permit.identity,
            "worker": self._worker.name,
            "groups": sorted(self._groups),
            "may": {
                "operate": may_operate,
                "fire": may_operate and has_keys and permit.allows(Access(Action.FIRE)),
                "drop": may_operate and has_keys,
                "jobs": may_operate and permit.allows(Access(Action.DEFER)),
                "read_jobs": permit.allows(Access(Action.DEFER)),
            },
        }


class _Viewer(DisconnectListener):
    """One open dashboard. It waits in `receive()`, so that its leaving is seen at once."""

    def __init__(
        self, snapshots: Snapshots, receive: Receive, send: Send, context: EndpointContext
    ) -> None:
        self._snapshots = snapshots
        self._receive = receive
        self._send = send
        self._unread = context.unread
        self._task = None
        self._cancelling = 0
        self._sent: bytes | None = None

    async def serve(self, session: dict[str, Any], limit: int | None, max_stream: float) -> None:
        """Send the session, then up to `limit` snapshots for `max_stream` seconds."""
        snapshots = self._snapshots
        end = "again"
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send_event("session", json.dumps(session).encode())
        # As a name: each access to the method makes another object.
        wake = self.interrupt
        snapshots.enter(wake)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(max_stream, wake)
        until_s = loop.time() + max_stream
        try:
            while limit != 0 and loop.time() < until_s:
                latest = snapshots.latest
                if latest is not None and latest is not self._sent:
                    self._sent = latest
                    await self._send_event("snapshot", latest)
                    limit = None if limit is None else limit - 1
                elif snapshots.is_over:
                    end = "drained"
                    break
                elif await self.until_disconnect():
                    return
        finally:
            timer.cancel()
            snapshots.leave(wake)
        await self._send_event(end, b"{}")
        await self._send({"type": "http.response.body", "body": b""})

    async def _send_event(self, name: str, data: bytes) -> None:
        body = b"event: %b\ndata: %b\n\n" % (name.encode(), data)
        with sending(len(body), self._unread):
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
        await asyncio.sleep(0)
