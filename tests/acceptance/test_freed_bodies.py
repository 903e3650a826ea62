"""What a server keeps of requests that it has refused: nothing, without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from purgatory import Purgatory
from purgatory.jobs import MemoryJobStore
from tests.acceptance.client import Connection
from tests.acceptance.process_server import ProcessServer, serve_service
from tests.acceptance.thread_server import (
    KINDS_BY_DAY,
    ServerKind,
    ThreadServer,
    serve_endpoints,
)
from tests.garbage import without_collector
from tests.patience import until

MIB: Final = 1024 * 1024
# In each request below, and of nothing else.
MARK: Final = "ax7q" * 4000


async def test_evicted_bodies_are_freed_by_the_service(tmp_path: Path) -> None:
    """Its memory stays within the bound on incomplete requests, however many are evicted."""
    bound, folder = str(8 * MIB), str(tmp_path)
    with serve_service(PURGATORY_MAX_INCOMPLETE_BYTES=bound, PURGATORY_DATA_DIR=folder) as server:
        await _evict(server)
        before = server.resident_bytes()
        for _ in range(8):
            await _evict(server)
        assert server.resident_bytes() - before < 16 * MIB


async def _evict(server: ProcessServer) -> None:
    """Begin eight bodies of 2 MiB, of which half are evicted, and leave."""
    head = (
        "POST /purgatory/jobs:batch HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/jsonl\r\nContent-Length: {2 * MIB}\r\n\r\n"
    )
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(await Connection.open(server.address)) for _ in range(8)
        ]
        for connection in opened:
            connection.write(head.encode() + b" " * (2 * MIB - 10))
            await connection.writer.drain()
        assert (await opened[0].reply()).status == 503


def _refused(**changes: Any) -> bytes:
    return json.dumps({"handler": "note", "delay": 900, "payload": MARK, **changes}).encode()


_FIRE, _KEYS, _JOBS = ("POST", "/keys/k"), ("POST", "/keys"), ("POST", "/jobs")
_VALUE: Final = json.dumps({"value": MARK}).encode()
_NAMED: Final = {"Idempotency-Key": "a"}
# {name: method, target, body, headers}
REFUSALS: Final[dict[str, tuple[tuple[str, str], bytes, dict[str, str]]]] = {
    "no JSON": (_FIRE, _VALUE[:-1], {}),
    "an unknown field": (_FIRE, json.dumps({"x": MARK}).encode(), {}),
    "a name twice": (_FIRE, b'{"value":1,"value":"%b"}' % MARK.encode(), {}),
    "a parameter": (("POST", "/keys/k?x=1&y=2"), _VALUE, {}),
    "a header": (_FIRE, _VALUE, {"Idempotency-Key": ""}),
    "several cursors": (_FIRE, _VALUE, {"If-Match": '"x", "y"'}),
    "one good cursor": (("POST", "/keys/other"), _VALUE, {"If-Match": '"x", "0"'}),
    "a key, named": (("POST", f"/keys/{'k' * 300}"), _VALUE, _NAMED),
    "a value, named": (_FIRE, b'{"value":["%b",NaN]}' % MARK.encode(), _NAMED),
    "a batch, named": (_KEYS, json.dumps([{"key": "\n", "value": MARK}]).encode(), _NAMED),
    "a batch with a condition": (_KEYS, b"[]" + MARK.encode(), {"If-Match": '"x"'}),
    "a wait": (("POST", "/watch"), json.dumps({"keys": {"k": "0"}, "wait": MARK}).encode(), {}),
    "a handler": (_JOBS, _refused(handler="none"), _NAMED),
    "a callback": (_JOBS, _refused(handler=None, callback={"url": "http://192.0.2.1"}), _NAMED),
    "a cursor of a job": (_JOBS, _refused(keys=["k"], since="x"), _NAMED),
    "a payload": (_JOBS, _refused(payload=MARK * 5), _NAMED),
    "a duplicate": (_JOBS, _refused(dedupe_key="taken"), _NAMED),
    "lines": (
        ("POST", "/jobs:batch"),
        b"\n".join((_refused(dedupe_key="taken"), _refused(handler="none"), MARK.encode())),
        {},
    ),
    "lines with a name": (("POST", "/jobs:batch"), _refused(), _NAMED),
    "no job": (("PATCH", "/jobs/x"), b'{"delay":1}' + b" " * len(MARK), {}),
    "actions": (
        ("POST", "/dashboard/actions"),
        json.dumps({"action": "cancel-job", "targets": ["a", "b"], "value": MARK}).encode(),
        {},
    ),
    "a method": (("PUT", "/keys/k"), _VALUE, {}),
    "no address": (("POST", "/nothing"), _VALUE, {}),
    "a stream": (("GET", "/watch?key=k&x=1&y=2"), b"", {"X": MARK[:12_000]}),
    "a poll": (("GET", "/watch/k?x=1&y=2&wait=q"), b"", {"X": MARK[:12_000]}),
}


@pytest.fixture(scope="module", params=KINDS_BY_DAY, ids=str)
def server(request: pytest.FixtureRequest) -> Iterator[ThreadServer]:
    """A server on each pair of protocol and loop."""
    kind: ServerKind = request.param
    purgatory = Purgatory(jobs=MemoryJobStore())
    purgatory.handled_elsewhere(["note"], http=True)
    with serve_endpoints(kind, purgatory) as running:
        yield running


@pytest.mark.parametrize("is_chunked", [False, True], ids=["whole", "chunked"])
async def test_refused_requests_are_freed(server: ThreadServer, *, is_chunked: bool) -> None:
    """No exception keeps its body by way of the frames that it has passed."""
    await _send(server, "POST", "/jobs", _refused(dedupe_key="taken", payload=1))

    async def refuse_each() -> None:
        for (method, path), body, headers in REFUSALS.values():
            assert await _send(server, method, path, body, headers, is_chunked=is_chunked)

    # What is made once is made here.
    await refuse_each()
    with without_collector():
        await refuse_each()
        await until(lambda: not server.connections())
        await server.call(asyncio.sleep, 0)
        assert _kept() == []


async def _send(
    server: ThreadServer,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str] | None = None,
    *,
    is_chunked: bool = False,
) -> int:
    lines = [f"{method} /purgatory{path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body:
        lines.append("Content-Type: application/json")
        lines.append("Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body)}")
    if body and is_chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with await Connection.open(server.address) as connection:
        connection.write("\r\n".join([*lines, "", ""]).encode() + body)
        return (await connection.reply()).status


def _kept() -> list[str]:
    """Return what only the garbage collector would free, and holds much of a request."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [
            f"{type(found).__name__}: {str(found)[:300]}"
            for found in gc.garbage
            if any(map(_is_of_request, gc.get_referents(found)))
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def _is_of_request(found: object) -> bool:
    return isinstance(found, (bytes, bytearray, str)) and len(found) >= 12_000
