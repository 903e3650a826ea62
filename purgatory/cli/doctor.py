"""Checks of an installation: the library, the server and its workers, its stores."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import platform
import resource
import sys
import threading
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import httpx
import typer

from purgatory.cli.output import OK, REFUSED, print_rows
from purgatory.cli.session import Session, StoreUrl, session_of, store_at
from purgatory.client import RefusedError
from purgatory.client.requests import Reply, auth_headers, reply_of
from purgatory.environment import unknown_variables
from purgatory.errors import PurgatoryError, SignalsUnavailableError
from purgatory.jobs.model.job import JobFilter, JobState
from purgatory.jobs.stores.protocol import JobStore
from purgatory.purgatory import Purgatory
from purgatory.timer import SystemClock, compiled

# Of a store's time and ours.
MAX_SKEW_S: Final = 2.0
# Of the server's time and ours: a busy server refreshes its Date late.
_MAX_DATE_SKEW_S: Final = 5.0
# Of an event loop, in ms: requests of all clients are late by it.
MAX_LOOP_LAG_MS: Final = 100.0
# The first snapshot has no lag, which takes a second to measure.
_SNAPSHOTS: Final = 2
# Longer than a restart of all workers takes.
MAX_OVERDUE_S: Final = 60
_MAX_NAMES: Final = 5
# Of signals, while they are opened and closed.
_MAX_RECORDS: Final = 1_000
# Descriptors besides connections: stores, logs, the event loop.
_SPARE_FILES: Final = 100
# By the modules that they bring; an extra may be complete because others need the same ones.
_EXTRAS: Final = {
    "cli": ("typer", "rich", "httpx"),
    "client": ("httpx",),
    "fastapi": ("fastapi", "uvicorn"),
    "sql": ("sqlalchemy", "aiosqlite", "alembic"),
    "postgresql": ("sqlalchemy", "alembic", "aiosqlite", "asyncpg"),
    "redis": ("redis",),
    "webhook": ("httpx",),
    "cron": ("cronsim",),
    "journal": ("pyarrow",),
    "report": ("duckdb", "pyarrow"),
    "pipeline": ("pyspark", "duckdb", "pyarrow"),
    "metrics": ("prometheus_client",),
    "tracing": ("opentelemetry",),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    result: Literal["ok", "warning", "failed"]
    what: str
    detail: str


def doctor(
    context: typer.Context,
    store: StoreUrl = None,
    signals: Annotated[
        str | None,
        typer.Option(
            envvar="PURGATORY_SIGNALS", show_envvar=True, help="The URL of the shared signals."
        ),
    ] = None,
) -> int:
    """Look for what is wrong: library, settings, server, job store, signals, clocks.

    Exit with 1 if anything failed. What is not given is not looked at.

    Example: purgatory --url https://shop.example doctor --store redis://localhost
    """
    session = session_of(context)
    # Refuses what is no URL before anything is looked at.
    session.client().close()
    findings = [*_library(), *_settings(), *_server(session)]
    if store is not None:
        findings += _checked("job store", _store(store))
    if signals is not None:
        findings += _checked("signals", _signals(signals))
    rows = (asdict(finding) for finding in findings)
    print_rows(("result", "what", "detail"), rows, as_json=session.as_json)
    return REFUSED if any(finding.result == "failed" for finding in findings) else OK


def installed_version() -> str:
    """Return the version that is installed, or that none is."""
    try:
        return version("fastapi-purgatory")
    except PackageNotFoundError:
        return "not installed, imported from a checkout"


def _library() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_implementation()} {platform.python_version()}")
    yield Finding("ok", "fastapi-purgatory", installed_version())
    yield _core()
    extras = [name for name, modules in _EXTRAS.items() if all(map(_is_installed, modules))]
    yield Finding("ok", "extras", ", ".join(extras))
    if "tracing" in extras and not _is_installed("opentelemetry.sdk"):
        detail = "only the API of OpenTelemetry is installed: spans are recorded with its SDK"
        yield Finding("ok", "tracing", detail)
    try:
        version("purgatory")
    except PackageNotFoundError:
        pass
    else:
        yield Finding(
            "failed",
            "purgatory",
            "the distribution purgatory, a circuit breaker, has a package of the same name: "
            "uninstall it, then install fastapi-purgatory again",
        )


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _core() -> Finding:
    if compiled:
        return Finding("ok", "core", "compiled")
    # Where `make run` of a checkout compiles the core, beside the sources.
    folder = Path(sys.prefix, "compiled")
    if any(folder.glob("purgatory/timer/*.so")):
        detail = (
            f"compiled in {folder}, which `make run` serves; this command runs in plain Python, as "
            f"does an application of yours, unless Python is started with PYTHONPATH={folder} and "
            "-P"
        )
        return Finding("ok", "core", detail)
    way_out = "install a wheel for this platform, or a C compiler before pip"
    detail = f"plain Python: timers are several times slower; {way_out}"
    return Finding("warning", "core", detail)


def _settings() -> Iterator[Finding]:
    unknown = unknown_variables(os.environ)
    for sentence in unknown:
        yield Finding("warning", "settings", sentence)
    if not unknown:
        yield Finding("ok", "settings", "each PURGATORY_ variable of the environment is known")


def _server(session: Session) -> Iterator[Finding]:
    base = session.url.rstrip("/")
    sent = datetime.now(UTC)
    try:
        alive = httpx.get(f"{base}/healthz", timeout=5)
        received = datetime.now(UTC)
        ready = httpx.get(f"{base}/readyz", timeout=5)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        yield Finding("failed", "server", f"{base} cannot be reached: {exc}")
        return
    if alive.status_code == 404:
        yield Finding("ok", "server", f"{base} responds, and has no /healthz")
    elif ready.status_code == 200:
        yield Finding("ok", "server", f"{base} is ready")
    else:
        missing = "; ".join(_missing(ready)) or f"/readyz responded with {ready.status_code}"
        yield Finding("failed", "server", f"{base} is not ready: {missing}")
    yield from _skew(alive, sent, received)
    yield from _workers(session)
    try:
        with session.client() as client:
            statistics = client.call("GET", "/statistics")
    except RefusedError as exc:
        yield Finding("warning", "statistics", _refusal(exc))
        return
    except PurgatoryError as exc:
        yield Finding("failed", "statistics", str(exc))
        return
    yield Finding(
        "ok" if statistics["is_compiled"] else "warning",
        "server's core",
        "compiled" if statistics["is_compiled"] else "plain Python",
    )
    yield from _files(statistics["parked"])
    shared = statistics["shared_signals"]
    detail = "in the memory of one process" if shared is None else "shared through Redis"
    yield Finding(
        "ok", "server's signals", f"{detail}; {statistics['signals']['signals']} are kept"
    )


def _missing(ready: httpx.Response) -> list[str]:
    try:
        found = ready.json()["missing"]
    except (ValueError, KeyError, TypeError):
        return []
    return [str(each) for each in found] if isinstance(found, list) else []


def _skew(response: httpx.Response, sent: datetime, received: datetime) -> Iterator[Finding]:
    try:
        said = parsedate_to_datetime(response.headers["Date"])
        # Date has whole seconds, and is of some moment between the two: this much is certain.
        behind_s = (sent - said).total_seconds() - 1
        ahead_s = (said - received).total_seconds()
    except (KeyError, TypeError, ValueError):
        return
    skew_s = max(behind_s, ahead_s)
    if skew_s < _MAX_DATE_SKEW_S:
        yield Finding("ok", "server's clock", "agrees with the one here")
        return
    direction = "behind" if behind_s > ahead_s else "ahead of"
    detail = f"at least {skew_s:.0f} s {direction} the one here"
    yield Finding("warning", "server's clock", detail)


def _files(parked: int) -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_enough = soft == resource.RLIM_INFINITY or soft > parked + _SPARE_FILES
    yield Finding(
        "ok" if is_enough else "warning",
        "descriptors",
        f"{soft} here (ulimit -n), {parked} requests parked at the server; each needs one",
    )


def _workers(session: Session) -> Iterator[Finding]:
    """Yield a finding for each worker; without the dashboard, one that says so."""
    address = f"{session.url.rstrip('/')}{session.prefix}/dashboard/snapshot"
    try:
        for number in range(_SNAPSHOTS):
            threading.Event().wait(number)
            response = httpx.get(address, headers=auth_headers(session.token), timeout=5)
            if response.status_code != 200:
                yield _not_shown(reply_of(response, response.content))
                return
        workers = response.json()["workers"]
    except (httpx.HTTPError, httpx.InvalidURL, PurgatoryError, ValueError) as exc:
        yield Finding("warning", "workers", f"the dashboard could not be read: {exc}")
        return
    for worker in workers:
        yield _worker(worker)


def _not_shown(reply: Reply) -> Finding:
    if reply.status == 404:
        return Finding("ok", "workers", "not looked at: the server does not offer its dashboard")
    said = _refusal(RefusedError(reply.status, reply.problem))
    return Finding("warning", "workers", f"the dashboard responded with {reply.status}: {said}")


def _refusal(error: RefusedError) -> str:
    """Return what a server said, and the scope that is needed if it has tokens with scopes."""
    is_of_tokens = error.slug in ("unauthorized", "forbidden")
    return f"{error} (a token with the scope observe may read this)" if is_of_tokens else str(error)


def _worker(worker: dict[str, Any]) -> Finding:
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


async def _store(url: str) -> list[str]:
    store = store_at(url)
    await store.open()
    try:
        warnings = [*await store.check(), *await overdue_warnings(store)]
        skew_ms = await store.now_ms() - SystemClock().wall_ms()
    finally:
        await store.close()
    if abs(skew_ms) > MAX_SKEW_S * 1000:
        warnings.append(f"its clock differs from the one here by {skew_ms / 1000:.1f} s")
    return warnings


async def overdue_warnings(store: JobStore) -> list[str]:
    """Return a sentence if a job that can be claimed has been due for long.

    The store knows no worker's handlers. Jobs that workers hold or run show which are known: a
    worker that is busy holds those that were due first.
    """
    now_ms = await store.now_ms()
    due_ms = await store.next_due_ms()
    if due_ms is None or now_ms - due_ms < MAX_OVERDUE_S * 1000:
        return []
    # Of the newest jobs only: a mistake that was just made is among them.
    limit = store.limits.max_batch
    waiting = (await store.query(JobFilter(state=JobState.WAITING), limit=limit)).jobs
    running = (await store.query(JobFilter(state=JobState.RUNNING), limit=limit)).jobs
    free = [job for job in (*waiting, *running) if job.blocked_by is None]
    known = {job.handler for job in free if job.lease_until_ms > now_ms}
    overdue = {
        job.handler
        for job in free
        if job.state is JobState.WAITING
        and job.lease_until_ms <= now_ms
        and now_ms - job.due_ms >= MAX_OVERDUE_S * 1000
    }
    overdue_s = (now_ms - due_ms) // 1000
    return [
        f"jobs are overdue by up to {overdue_s} s, and no worker starts them"
        f"{_causes(overdue - known, overdue & known)}; "
        "`purgatory recover --dry-run` counts them by handler"
    ]


def _causes(unknown: set[str], busy: set[str]) -> str:
    causes = []
    if unknown or not busy:
        of = f" of {_shown(unknown)}" if unknown else ""
        causes.append(f"{of}: no worker runs, or none has the handler, whose name may be mistyped")
    if busy:
        causes.append(f" of {_shown(busy)}: workers have the handler, and are busy")
    such_as = ", such as" if unknown or busy else ""
    return such_as + "; and".join(causes)


def _shown(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)[:_MAX_NAMES]))


async def _signals(url: str) -> list[str]:
    from purgatory.signals.redis import RedisSignals

    logger, handler = logging.getLogger("purgatory.signals"), BufferingHandler(_MAX_RECORDS)
    handler.setLevel(logging.WARNING)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        shared = RedisSignals(url)
        async with Purgatory(signals=shared) as purgatory:
            # Opening an unreachable server only logs: a worker would try again.
            shared.require_loaded()
            if purgatory.missing:
                raise SignalsUnavailableError("; ".join(purgatory.missing))
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
    return [record.getMessage().removeprefix("signals: ") for record in handler.buffer]


def _checked(what: str, check: Coroutine[Any, Any, list[str]]) -> Iterator[Finding]:
    """Yield the warnings of a check, what it raises, or that all is well."""
    try:
        warnings = asyncio.run(check)
    except typer.BadParameter as exc:
        # Of a variable, perhaps: what else is wrong is of interest, too.
        yield Finding("failed", what, exc.message)
    except (PurgatoryError, ImportError, ValueError, OSError) as exc:
        yield Finding("failed", what, str(exc))
    else:
        yield from (Finding("warning", what, warning) for warning in warnings)
        if not warnings:
            yield Finding("ok", what, "can be used, with its settings")
