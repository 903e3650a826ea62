"""The costliest request for each operation of OpenAPI, and the rest of the process meanwhile.

Counted in calls of functions between two turns of the event loop, with turns that end whenever they
may: that depends on the code alone. A millisecond is 5,000 to 10,000 of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from fastapi import FastAPI

from purgatory import Purgatory, turn_budget
from purgatory.fastapi import ALLOW_ANYONE, create_health_router, install
from purgatory.jobs import MemoryJobStore
from tests.acceptance.client import Connection, Reply
from tests.acceptance.thread_server import KINDS, ThreadServer, serve
from tests.security.victims_world import operations

MAX_CALLS: Final = 10_000
HEADER: Final = 12_000
NAMES: Final = ",".join(f'"{n:x}":1' for n in range(20_000))


class Calls:
    """Counts the calls of functions in each turn of the loop that it is entered on."""

    def __init__(self) -> None:
        self._now = 0
        self.most = 0
        self.turns = 0

    async def begin(self) -> None:
        """Count from now on."""
        self._turning = asyncio.create_task(self._turn())
        sys.setprofile(self._count)

    async def end(self) -> None:
        """Count no more."""
        sys.setprofile(None)
        self._turning.cancel()

    def _count(self, frame: object, event: str, argument: object) -> None:
        self._now += event in ("call", "c_call")

    async def _turn(self) -> None:
        while True:
            self.turns += 1
            self.most = max(self.most, self._now)
            self._now = 0
            await asyncio.sleep(0)


def _job(**changes: Any) -> dict[str, Any]:
    return {"handler": "note", "delay": 900, **changes}


def _listed(item: str) -> str:
    return ", ".join(f"{item}{n:x}" for n in range(HEADER))[:HEADER].rpartition(",")[0]


def _tags() -> str:
    return ",".join(f'"{n:x}"' for n in range(HEADER))[:HEADER].rpartition(",")[0]


_WAIT_LISTS: Final = {"Prefer": _listed("a"), "Accept": f"text/event-stream, {_listed('a/')}"}
_EVENTS: Final = {"Accept": "text/event-stream"}
_EMPTY_OBJECTS: Final = "[" + ",".join(["{}"] * 21_000) + "]"
_QUERY: Final = "&".join(f"x{n}=1" for n in range(400))
Request = tuple[str, dict[str, str], str]
# {operation: {name: query or path, headers, body}}
COSTLY: Final[dict[str, dict[str, Request]]] = {
    "watch_key": {
        "signals": ("?cursor=0&limit=1000&wait=0", {}, ""),
        "a stream": ("?cursor=0&limit=1000&wait=0", _EVENTS, ""),
        "headers": ("?wait=0", _WAIT_LISTS, ""),
        "tags": ("?wait=0", {"If-None-Match": _tags()}, ""),
        "a query": (f"?{_QUERY}", {}, ""),
    },
    "follow_keys": {
        "keys": ("?" + "&".join(f"key=k{n}" for n in range(2_000)), {}, ""),
        "nothing": ("?" + "&" * 12_000, {}, ""),
        "signals": ("?cursor=0&wait=0&" + "&".join(f"key=k{n}" for n in range(100)), {}, ""),
    },
    "watch_keys": {
        "names": ("", {}, f"{{{NAMES}}}"),
        "keys": ("", {}, f'{{"keys":{{{NAMES}}}}}'),
        "cursors": (
            "",
            {},
            json.dumps({"keys": {f"k{n}": f"x{n}" for n in range(100)}, "wait": 0}),
        ),
        "a list": ("", {}, f'{{"keys":{_EMPTY_OBJECTS}}}'),
    },
    "cancel_wait": {"headers": ("", _WAIT_LISTS, "")},
    "describe_key": {"a query": (f"?{_QUERY}", {}, "")},
    "fire_key": {
        "a value": ("", {}, f'{{"value":{_EMPTY_OBJECTS}}}'),
        "names in a value": ("", {}, f'{{"value":{{{NAMES[:60_000].rpartition(",")[0]}}}}}'),
        "a large value": ("", {}, f'{{"value":[{",".join(["[[],[]]"] * 20_000)}]}}'),
        "names": ("", {}, f"{{{NAMES[:190_000].rpartition(',')[0]}}}"),
        "tags": ("", {"If-Match": _tags()}, '{"value":1}'),
        "encodings": ("", {"Content-Encoding": "," * HEADER}, '{"value":1}'),
    },
    "fire_keys": {
        "items": ("", {}, "[" + ",".join(['{"key":"k"}'] * 1000) + "]"),
        "values": (
            "",
            {},
            "[" + ",".join([f'{{"key":"k","value":[{",".join(["{}"] * 300)}]}}'] * 200) + "]",
        ),
        "names": ("", {}, f"[{{{NAMES}}}]"),
        "unknown names": ("", {}, "[" + ",".join(['{"x":1}'] * 20_000) + "]"),
        "no keys": ("", {}, "[" + ",".join(['{"key":1}'] * 1000) + "]"),
    },
    "drop_key": {"headers": ("", _WAIT_LISTS, "")},
    "list_keys": {"a page": ("?limit=1000", {}, "")},
    "add_job": {
        "a payload": ("", {}, json.dumps(_job()).replace("}", f',"payload":{_EMPTY_OBJECTS}}}')),
        "keys": ("", {}, f'{{"handler":"note","delay":1,"keys":{_EMPTY_OBJECTS}}}'),
        "names": ("", {}, f"{{{NAMES}}}"),
        "cursors": ("", {}, f'{{"handler":"note","delay":1,"since":{{{NAMES}}}}}'),
        "headers": ("", {}, f'{{"delay":1,"callback":{{"url":"http://a","headers":{{{NAMES}}}}}}}'),
        "digits": ("", {}, f'{{"payload":[{",".join(["9" * 4_000] * 200)}]}}'),
    },
    "add_jobs": {
        "lines": ("", {}, "\n".join([json.dumps(_job())] * 1_500)),
        "refused lines": ("", {}, "x\n" * 6_000),
        "names": ("", {}, "\n".join([f"{{{NAMES[:2_000].rpartition(',')[0]}}}"] * 200)),
        "payloads": ("", {}, "\n".join([json.dumps(_job(payload=[{}] * 5_000))] * 20)),
    },
    "get_job": {"tags": ("", {"If-None-Match": _tags(), **_WAIT_LISTS}, "")},
    "reschedule_job": {"names": ("", {"If-Match": _tags()}, f"{{{NAMES[:1_000]}}}")},
    "cancel_job": {"tags": ("", {"If-Match": _tags()}, "")},
    "run_job": {"tags": ("", {"If-Match": _tags()}, "")},
    "retry_job": {"tags": ("", {"If-Match": _tags()}, "")},
    "retry_jobs": {"all": ("?all=true&limit=1000", {}, "")},
    "paused_handlers": {"a query": (f"?{_QUERY}", {}, "")},
    "pause_handler": {"a query": (f"?{_QUERY}", {}, "")},
    "resume_handler": {"a query": (f"?{_QUERY}", {}, "")},
    "list_jobs": {"a page": ("?limit=1000", {}, "")},
    "statistics": {"a query": (f"?{_QUERY}", {}, "")},
    "list_waits": {"a page": ("?limit=1000", {}, "")},
    "javascript": {"headers": ("", _WAIT_LISTS, "")},
    "dashboard_snapshot": {"a snapshot": ("", {}, "")},
    "dashboard_actions": {
        "targets": ("", {}, json.dumps({"action": "fire", "targets": ["k"] * 500})),
        "jobs": ("", {}, json.dumps({"action": "cancel-job", "targets": ["k"] * 500})),
        "waits": ("", {}, json.dumps({"action": "cancel-wait", "targets": ["k"] * 500})),
        "too many": ("", {}, f'{{"action":"fire","targets":{_EMPTY_OBJECTS}}}'),
        "names": ("", {}, f"{{{NAMES}}}"),
    },
    "dashboard": {"headers": ("", _WAIT_LISTS, "")},
    "dashboard_file": {"headers": ("", {"If-None-Match": _tags()}, "")},
    "problem": {"headers": ("", _WAIT_LISTS, "")},
    "healthz": {"headers": ("", _WAIT_LISTS, "")},
    "readyz": {"headers": ("", _WAIT_LISTS, "")},
}


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadServer]:
    """The service, with much in it that may be asked for."""
    purgatory, app = Purgatory(jobs=MemoryJobStore()), FastAPI()
    purgatory.handled_elsewhere(["note"], http=True)
    install(app, purgatory, authorize=ALLOW_ANYONE)
    app.include_router(create_health_router(purgatory))
    with serve(app, purgatory, KINDS[-1]) as running:
        yield running


@pytest.fixture(scope="module")
async def filled(server: ThreadServer) -> AsyncIterator[ThreadServer]:
    """A thousand signals, jobs and waits."""
    purgatory = server.purgatory

    async def fill() -> list[asyncio.Task[Any]]:
        for _ in range(1_000):
            await purgatory.fire("k", {"a": 1})
        for n in range(100):
            await purgatory.fire(f"k{n}")
        await purgatory.jobs.add(
            [purgatory.jobs.spec("note", None, delay=900.0) for _ in range(1_000)]
        )
        return [asyncio.ensure_future(purgatory.park(f"w{n}", timeout=900.0)) for n in range(1_000)]

    parked = await server.call(fill)
    yield server

    async def empty() -> None:
        for each in parked:
            each.cancel()

    await server.call(empty)


@asynccontextmanager
async def _counting(server: ThreadServer) -> AsyncIterator[Calls]:
    calls = Calls()
    await server.call(calls.begin)
    try:
        yield calls
    finally:
        await server.call(calls.end)


@pytest.mark.parametrize("operation", COSTLY)
async def test_a_costly_request_leaves_others_their_turns(
    filled: ThreadServer, operation: str
) -> None:
    """A turn has so many calls at most, however many the request takes."""
    method, path, _ = operations(filled.app)[operation]
    path = path.format(key="k", id="0" * 32, slug="full", file="dashboard.js")
    for name, (query, headers, body) in COSTLY[operation].items():
        await _send(filled, method, path + query, headers, body)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(turn_budget, "TURN_NS", 0)
            async with _counting(filled) as calls:
                await _send(filled, method, path + query, headers, body)
        assert calls.most <= MAX_CALLS, name


async def _send(
    server: ThreadServer, method: str, target: str, headers: dict[str, str], body: str
) -> Reply:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    async with await Connection.open(server.address) as connection:
        connection.write("\r\n".join([*lines, "", body]).encode())
        return await connection.reply()


def test_each_operation_has_a_costly_request(server: ThreadServer) -> None:
    """What a new one takes is looked at before it lands."""
    assert operations(server.app).keys() == COSTLY.keys()
