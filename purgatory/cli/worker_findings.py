"""The workers of a server, as its dashboard shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx

from purgatory.cli.finding import Finding
from purgatory.cli.session import Session
from purgatory.client import RefusedError
from purgatory.client.requests import Reply, auth_headers, reply_of
from purgatory.client.server_sent_events import EventReader
from purgatory.errors import PurgatoryError

# Of an event loop, in ms: requests of all clients are late by it.
MAX_LOOP_LAG_MS: Final = 100.0
# The first snapshot has neither the other workers nor a lag, which takes a second to measure.
_SNAPSHOTS: Final = 3


def worker_findings(session: Session) -> Iterator[Finding]:
    """Yield a finding for each worker; without the dashboard, one that says so."""
    address = f"{session.url.rstrip('/')}{session.prefix}/dashboard/stream"
    try:
        with httpx.stream(
            "GET",
            address,
            params={"limit": str(_SNAPSHOTS)},
            headers=auth_headers(session.token),
            timeout=5,
        ) as response:
            if response.status_code == 200:
                workers = _last_workers(response)
            else:
                response.read()
                yield _not_shown(reply_of(response, response.content))
                return
    except (httpx.HTTPError, httpx.InvalidURL, PurgatoryError, ValueError) as exc:
        yield Finding("warning", "workers", f"the dashboard could not be read: {exc}")
        return
    for worker in workers:
        yield _finding(worker)


def _not_shown(reply: Reply) -> Finding:
    if reply.status == 404:
        return Finding("ok", "workers", "not looked at: the server does not offer its dashboard")
    found = reply.json()
    said = refusal(RefusedError(reply.status, found if isinstance(found, dict) else {}))
    return Finding("warning", "workers", f"the dashboard responded with {reply.status}: {said}")


def refusal(error: RefusedError) -> str:
    """Return what a server said, and the scope that is needed if it has tokens with scopes."""
    is_of_tokens = error.slug in ("unauthorized", "forbidden")
    return f"{error} (a token with the scope observe may read this)" if is_of_tokens else str(error)


def _last_workers(response: httpx.Response) -> list[dict[str, Any]]:
    reader, workers = EventReader(), []
    for piece in response.iter_bytes():
        for event in reader.feed(piece):
            if event.type == "snapshot":
                workers = json.loads(event.data)["workers"]
    return workers


def _finding(worker: dict[str, Any]) -> Finding:
    lag_ms = float(worker.get("loop_lag_ms", 0.0))
    parts = [f"its event loop is late by up to {lag_ms:g} ms"]
    shared = worker.get("statistics", {}).get("shared_signals")
    if shared is not None:
        parts.append(f"{shared.get('lag', 0)} signals of the log are not applied")
    missing = [str(each) for each in worker.get("missing", ())]
    is_well = lag_ms <= MAX_LOOP_LAG_MS and not missing
    return Finding(
        "ok" if is_well else "warning",
        f"worker {worker.get('worker', '')}",
        "; ".join([", ".join(parts), *missing]),
    )
