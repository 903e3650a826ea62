"""`python -m purgatory worker module:object`: a process that runs handlers, and serves nothing."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import importlib.util
import inspect
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from purgatory.errors import PurgatoryError
from purgatory.jobs.handlers.threads import DaemonThreads
from purgatory.purgatory import Purgatory

if TYPE_CHECKING:
    from purgatory.metrics import PurgatoryCollector

logger = logging.getLogger("purgatory.worker")

OK: Final = 0
REFUSED: Final = 1
WRONG_USAGE: Final = 2
MAX_PORT: Final = 65_535
# Of a client of the health port, for all of its request.
_REQUEST_S: Final = 5.0
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class WrongTargetError(Exception):
    """What was named is nothing that a worker can run."""


class CannotStartError(Exception):
    """A store without its tables, or a port that is in use."""


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of `python -m purgatory`."""
    parser = commands.add_parser("worker", help="run the handlers of jobs, and serve nothing")
    parser.add_argument("target", metavar="MODULE:OBJECT", help="a Purgatory, or its application")
    parser.add_argument("--port", type=_port, help="for /healthz, /readyz and /metrics")
    parser.add_argument("--host", default="127.0.0.1", help="the address of that port")
    parser.set_defaults(main=lambda options: main(options.target, options.host, options.port))


def _port(text: str) -> int:
    if not 0 <= (port := int(text)) <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{port} is none: give a number from 0 to {MAX_PORT}")
    return port


def main(target: str, host: str, port: int | None) -> int:
    """Run the handlers of `target` until SIGTERM or SIGINT, and drain; return the exit status."""
    if not logging.getLogger().handlers:
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        # It lists its plug-ins as tables are migrated.
        logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        purgatory, opened = load(target)
        asyncio.run(_work(purgatory, opened, host, port))
    except WrongTargetError as exc:
        sys.stderr.write(f"{target}: {exc}\n")
        return WRONG_USAGE
    except CannotStartError as exc:
        sys.stderr.write(f"the worker cannot start: {exc}\n")
        return REFUSED
    return OK


def load(target: str) -> tuple[Purgatory, AbstractAsyncContextManager[Any]]:
    """Return the purgatory that `target` names, and what opens it: itself, or its application.

    `target` is "module:object", of a Purgatory, an application in which one is installed, or a
    callable that returns one of them. Raises WrongTargetError.
    """
    module_name, _, names = target.partition(":")
    if not names or module_name[:1] in ("", "."):
        raise WrongTargetError("give a module and an object in it, as in shop:app")
    # As uvicorn does: what is in this folder.
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
            raise
        raise WrongTargetError(f"there is no module {exc.name!r}") from exc
    try:
        found = attrgetter(names)(found)
    except AttributeError as exc:
        raise WrongTargetError(str(exc)) from exc
    if inspect.iscoroutinefunction(found):
        raise WrongTargetError("it is async: a worker calls a function without await")
    # An application is callable, too.
    if callable(found) and not hasattr(found, "state"):
        found = found()
    is_bare = isinstance(found, Purgatory)
    purgatory = found if is_bare else getattr(getattr(found, "state", None), "purgatory", None)
    if not isinstance(purgatory, Purgatory):
        raise WrongTargetError("it is no Purgatory, and no application with install(app, ...)")
    if not purgatory.has_jobs:
        raise WrongTargetError("its purgatory has no job store, such as Purgatory(jobs=...)")
    if not purgatory.handlers:
        raise WrongTargetError("its purgatory has no handlers, so there is nothing to run")
    return purgatory, found if is_bare else found.router.lifespan_context(found)


async def _work(
    purgatory: Purgatory, opened: AbstractAsyncContextManager[Any], host: str, port: int | None
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: int, frame: object) -> None:
        # The next one ends the process at once, even while a handler holds the loop.
        for each in _STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(stopped.set)

    # Before the application's lifespan, which calls on what is there.
    for each in _STOP_SIGNALS:
        signal.signal(each, stop)
    jobs = purgatory.jobs
    loop.set_default_executor(DaemonThreads(jobs.settings.max_threads))
    jobs.settings = replace(jobs.settings, runs_handlers=True)
    async with AsyncExitStack() as stack:
        server = HealthServer(purgatory)
        if server.collector is not None and port is not None:
            await stack.enter_async_context(server.collector)
        try:
            await stack.enter_async_context(opened)
        except PurgatoryError as exc:
            raise CannotStartError(str(exc)) from exc
        where = ""
        if port is not None:
            address = await server.listen(host, port)
            stack.push_async_callback(server.close)
            where = f"; health: http://{address}/readyz"
        # Else Python looks through all modules once more at the exit, for most of its time.
        gc.collect()
        gc.freeze()
        names = ", ".join(purgatory.handlers.own_names)
        sys.stdout.write(f"Purgatory worker runs {names}{where} (Ctrl+C stops it)\n")
        sys.stdout.flush()
        await stopped.wait()
        # While the health port still says so.
        await purgatory.drain()
    logger.info("the worker has stopped", extra={"action": "worker-stopped"})


class HealthServer:
    """Answers GET /healthz, /readyz and, with the extra `metrics`, /metrics: one request each.

    Not a web server: for the probes and scrapers of one's own network.
    """

    def __init__(self, purgatory: Purgatory) -> None:
        """Prepare, before the purgatory is opened."""
        self._purgatory = purgatory
        self._server: asyncio.Server | None = None
        self.collector: PurgatoryCollector | None = None
        if importlib.util.find_spec("prometheus_client") is not None:
            from purgatory.metrics import PurgatoryCollector

            self.collector = PurgatoryCollector(purgatory)
        self._responses: dict[str, Callable[[], Awaitable[tuple[int, bytes, str]]]] = {
            "/healthz": self._alive,
            "/readyz": self._ready,
            "/metrics": self._metrics,
        }

    async def listen(self, host: str, port: int) -> str:
        """Begin to listen; return the address. Raises CannotStartError."""
        try:
            self._server = await asyncio.start_server(self._answer, host, port)
        except OSError as exc:
            raise CannotStartError(str(exc)) from exc
        found, number, *_ = self._server.sockets[0].getsockname()
        return f"[{found}]:{number}" if ":" in found else f"{found}:{number}"

    async def close(self) -> None:
        """Listen no more."""
        assert self._server is not None
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._response(head.decode("latin-1")))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            # It has left, or sends no request.
            pass
        finally:
            writer.close()

    async def _response(self, head: str) -> bytes:
        method, _, rest = head.partition(" ")
        respond = self._responses.get(rest.split(" ")[0].partition("?")[0])
        if respond is None:
            status, body, kind = 404, b"not found\n", "text/plain"
        elif method not in ("GET", "HEAD"):
            status, body, kind = 405, b"method not allowed\n", "text/plain"
        else:
            try:
                status, body, kind = await respond()
            except Exception:
                logger.exception("the health port failed", extra={"action": "health-failed"})
                status, body, kind = 500, b"internal error\n", "text/plain"
        lines = (
            f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Connection: close",
        )
        start = "".join(f"{line}\r\n" for line in lines) + "\r\n"
        return start.encode() + (b"" if method == "HEAD" else body)

    async def _alive(self) -> tuple[int, bytes, str]:
        return 200, b"alive\n", "text/plain"

    async def _ready(self) -> tuple[int, bytes, str]:
        missing = self._purgatory.missing
        if self._purgatory.is_draining:
            missing = ["draining: the process is shutting down"]
        body = "".join(f"{line}\n" for line in missing or ["ready"])
        return 503 if missing else 200, body.encode(), "text/plain; charset=utf-8"

    async def _metrics(self) -> tuple[int, bytes, str]:
        if self.collector is None:
            return 404, b"pip install 'fastapi-purgatory[metrics]'\n", "text/plain"
        body, kind = await self.collector.text()
        return 200, body, kind
