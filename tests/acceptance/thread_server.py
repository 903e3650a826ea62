"""A real server in a thread, beside the test that looks into it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import pytest
import uvicorn
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, install
from purgatory.fastapi.routing.routes import route_contexts
from purgatory.fastapi.watch.parked_requests import WaitRegistry
from purgatory.fastapi.watch.routes import WatchEndpoint
from tests.acceptance.client import Address, Connection, Reply
from tests.nightly import NIGHTLY
from tests.patience import KEEP_ALIVE_S, PATIENCE_S

Args = ParamSpec("Args")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ServerKind:
    """How uvicorn is run."""

    http: Any
    loop: Any

    def __str__(self) -> str:
        return f"{self.http.rpartition(':')[2]}-{self.loop}"


KINDS = (
    ServerKind("httptools", "uvloop"),
    ServerKind("h11", "asyncio"),
    ServerKind("purgatory.uvicorn:ParkingProtocol", "uvloop"),
)


# With h11, requests take the same way through the code as with httptools.
KINDS_BY_DAY = (KINDS[0], pytest.param(KINDS[1], marks=NIGHTLY), KINDS[2])


def each_kind(*kinds: Any) -> Any:
    """Return the fixture `kind`: the tests of a module run on these, not on those of the folder."""

    @pytest.fixture(params=kinds, ids=str)
    def kind(request: pytest.FixtureRequest) -> ServerKind:
        found: ServerKind = request.param
        return found

    return kind


class _Server(uvicorn.Server):
    """Says when it has started, and remembers what runs then."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.own_tasks: set[asyncio.Task[Any]] = set()
        self.has_to_stop = asyncio.Event()

    async def main_loop(self) -> None:
        # uvicorn's own looks ten times a second whether it has to stop.
        await self.on_tick(0)
        await self.has_to_stop.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.loop = asyncio.get_running_loop()
        self.own_tasks = asyncio.all_tasks()
        self.ready.set()


class ThreadServer:
    """Serves an application on a free port of this machine; `purgatory` is the one inside."""

    def __init__(
        self, app: FastAPI, purgatory: Purgatory, kind: ServerKind = KINDS[0], root_path: str = ""
    ) -> None:
        self.app = app
        self.purgatory = purgatory
        # Named as TCP, or asyncio would leave Nagle's algorithm on for what is accepted from it.
        self._socket = socket.socket(proto=socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self.address: Address = self._socket.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        config = uvicorn.Config(
            app,
            http=kind.http,
            loop=kind.loop,
            log_config=None,
            access_log=False,
            root_path=root_path,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), daemon=True
        )

    def start(self) -> None:
        """Serve, and return once requests are answered."""
        self._thread.start()
        assert self._server.ready.wait(PATIENCE_S), "the server did not start"
        self._registries = _registries(self.app)

    def stop(self) -> None:
        """Shut down, as on a signal, and wait for it."""
        self._server.should_exit = True
        self.loop.call_soon_threadsafe(self._server.has_to_stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not stop"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The server's event loop."""
        assert self._server.loop is not None
        return self._server.loop

    def connections(self) -> list[Any]:
        """The protocols of the connections that are open, in uvicorn's words."""
        return list(self._server.server_state.connections)

    async def call(
        self, function: Callable[Args, Awaitable[Result]], *args: Args.args, **kwargs: Args.kwargs
    ) -> Result:
        """Await `function(...)` on the server's loop."""

        async def called() -> Result:
            return await function(*args, **kwargs)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(called(), self.loop))

    async def until_parked(self, count: int) -> None:
        """Wait until `count` requests are parked."""
        await self.call(self.until, lambda: self.purgatory.parked == count)

    async def until_waiting(self, key: str, count: int) -> None:
        """Wait until `count` requests wait on `key`."""
        await self.call(self.until, lambda: self.purgatory.waiting(key) == count)

    async def fire(self, *keys: str, value: Any = None) -> None:
        """Fire each key, one after the other."""
        for key in keys:
            await self.call(self.purgatory.fire, key, value)

    async def fire_parked(self, connection: Connection, key: str = "k", value: Any = None) -> Reply:
        """Fire a key once a request waits on it; return the next response on `connection`."""
        await self.until_waiting(key, 1)
        await self.call(self.purgatory.fire, key, value)
        return await connection.reply()

    def check_leaks(self) -> None:
        """Fail if anything is left of the requests whose clients have gone."""
        asyncio.run_coroutine_threadsafe(self._check_leaks(), self.loop).result(PATIENCE_S)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait on the server's loop, see `call`, until `condition()` holds."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if condition():
                return
            await asyncio.sleep(0.001)
        left = asyncio.all_tasks() - self._server.own_tasks - {asyncio.current_task()}
        raise AssertionError(f"it did not come to be: {self.purgatory!r}, tasks {left}")

    async def _check_leaks(self) -> None:
        state = self._server.server_state
        await self.until(lambda: not state.connections and not state.tasks)
        checking = asyncio.current_task()
        await self.until(lambda: asyncio.all_tasks() <= self._server.own_tasks | {checking})
        statistics = self.purgatory.statistics()
        assert (statistics.parked, statistics.watched, statistics.keys) == (0, 0, 0), statistics
        # Those that trim the histories, where there are any, and of jobs that are soon due.
        held = statistics.jobs.held if statistics.jobs is not None else 0
        assert statistics.timers <= len(self.purgatory.signals.parts()) + held, statistics
        assert not any(registry._named for registry in self._registries)


def _registries(app: FastAPI) -> list[WaitRegistry]:
    """The wait registries behind an application's routes: nothing public leads to them."""
    endpoints = (getattr(context, "endpoint", None) for context in route_contexts(app))
    return list({each.registry for each in endpoints if isinstance(each, WatchEndpoint)})


@contextmanager
def serve(
    app: FastAPI, purgatory: Purgatory, kind: ServerKind = KINDS[0], root_path: str = ""
) -> Iterator[ThreadServer]:
    """Serve `app` in a thread; at the end nothing may be left of its requests."""
    server = ThreadServer(app, purgatory, kind, root_path)
    server.start()
    try:
        yield server
        server.check_leaks()
    finally:
        server.stop()


@contextmanager
def serve_endpoints(
    kind: ServerKind = KINDS[0], purgatory: Purgatory | None = None, **options: Any
) -> Iterator[ThreadServer]:
    """Serve our endpoints alone, open to anyone, or as these options of `install` say."""
    purgatory, app = Purgatory() if purgatory is None else purgatory, FastAPI()
    install(app, purgatory, **{"authorize": ALLOW_ANYONE, **options})
    with serve(app, purgatory, kind) as server:
        yield server
