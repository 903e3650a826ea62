"""Delayed jobs that make no sense, over HTTP: refused with what and why, and nothing is stored."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.jobs import MemoryJobStore
from tests.acceptance.client import Connection
from tests.acceptance.jobs.application import JOBS, add, create_app, post_lines
from tests.acceptance.thread_server import KINDS, ThreadServer, serve
from tests.bad_input.refusals import check_refusal


@pytest.fixture(scope="module")
def shared_server() -> Iterator[ThreadServer]:
    """One kind of server: what is tested here is above it."""
    purgatory = Purgatory(jobs=MemoryJobStore())
    with serve(create_app(purgatory), purgatory, KINDS[2]) as running:
        yield running


@pytest.fixture
def server(shared_server: ThreadServer) -> ThreadServer:
    """The server."""
    return shared_server


@pytest.fixture
async def connection(server: ThreadServer) -> AsyncIterator[Connection]:
    """A connection to it."""
    async with await Connection.open(server.address) as opened:
        yield opened


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        (b"", 422, "bad-parameter"),
        (b"\n\n", 422, "bad-parameter"),
        (b"{}\n" * 10_001, 422, "bad-parameter"),
        (b"x" * (16 * 1024 * 1024 + 1), 413, "body-too-large"),
    ],
    ids=["empty", "blank", "too many", "too large"],
)
async def test_batches_that_are_none(
    server: ThreadServer, body: bytes, status: int, slug: str
) -> None:
    """Refused whole, before anything is done."""
    async with await Connection.open(server.address) as connection:
        check_refusal(await post_lines(connection, body), status, slug)
    assert (await server.call(server.purgatory.job_counts)).waiting == 0


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"delay": None}, "exactly one"),
        ({"at": "2126-01-01T00:00:00Z"}, "limit"),
        ({"at": "2001-01-01T00:00:00Z"}, "past"),
        ({"at": "2027-01-01T00:00:00"}, "timezone"),
        ({"at": "tomorrow"}, "/at"),
        ({"at": 5}, "/at"),
        *(({"at": at}, "date and a time") for at in ("1795811493", "+1795811493.5", "-5")),
        ({"delay": -1}, "/delay"),
        ({"delay": 1e10}, "315619200"),
        ({"delay": "5"}, "/delay"),
        ({"delay": True}, "/delay"),
        ({"handler": ""}, "/handler"),
        ({"handler": None}, "handler or a callback"),
        ({"callback": {"url": "http://example.com"}}, "handler or a callback"),
        ({"handler": None, "callback": {"url": "ftp://example.com"}}, "url"),
        ({"handler": None, "callback": {"url": "http://a@b/"}}, "url"),
        ({"handler": None, "callback": {}}, "/callback/url"),
        ({"handler": None, "callback": {"url": "http://a", "headers": {"Host": "b"}}}, "Host"),
        ({"payload": "x" * 65_537}, "65536"),
        ({"handler": "count", "payload": "x"}, "int"),
        ({"keys": "k"}, "/keys"),
        ({"keys": ["k"] * 101}, "/keys"),
        ({"keys": [""]}, "/keys/0"),
        ({"keys": ["a\x00"]}, "control"),
        ({"on_fire": "explode"}, "/on_fire"),
        ({"on_fire": "cancel"}, "no keys"),
        ({"keys": ["k"], "until": "some"}, "/until"),
        ({"keys": ["k"], "until": 1}, "/until"),
        ({"keys": ["k"], "until": {"count": 0}}, "/until"),
        ({"keys": ["k"], "until": {"count": 2}}, "1 to 1"),
        ({"until": "all"}, "no keys"),
        ({"since": "0"}, "no keys"),
        ({"keys": ["k"], "since": 5}, "/since"),
        ({"keys": ["k"], "since": {"k": None}}, "/since"),
        ({"keys": ["k"], "since": {"other": "0"}}, "'other'"),
        ({"keys": ["k"], "since": {f"k{n}": "0" for n in range(101)}}, "/since"),
        ({"on_conflict": "fight"}, "/on_conflict"),
        ({"misfire": "later"}, "/misfire"),
        ({"max_attempts": 0}, "/max_attempts"),
        ({"max_attempts": 1001}, "/max_attempts"),
        ({"max_attempts": 1.5}, "/max_attempts"),
        ({"ceiling": -1}, "/ceiling"),
        ({"dedupe_key": ""}, "/dedupe_key"),
        ({"colour": "red"}, "/colour"),
    ],
)
async def test_jobs_that_make_no_sense(
    server: ThreadServer, connection: Connection, fields: dict[str, Any], word: str
) -> None:
    """422 that says what and why, and nothing is stored."""
    body = {"handler": "note", "delay": 1, **fields}
    if "at" in fields:
        del body["delay"]
    body = {name: value for name, value in body.items() if value is not None}
    check_refusal(await connection.request("POST", JOBS, body), 422, "bad-parameter", word)
    assert (await server.call(server.purgatory.job_counts)).waiting == 0


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"at": "2126-01-01T00:00:00Z", "delay": 5}, "delay", ["delay is 5.0", "at is 2126-01-01"]),
        ({"delay": None}, "delay", ["neither"]),
        ({"at": "2001-01-01T00:00:00Z"}, "at", ["2001-01-01T00:00:00.000Z", "60 seconds"]),
        ({"at": "2126-01-01T00:00:00Z"}, "at", ["315619200 seconds"]),
        ({"delay": 1e10}, "delay", ["10000000000.0"]),
        ({"ceiling": 1e10}, "ceiling", ["315619200"]),
        ({"handler": None, "callback": {"url": "ftp://a/"}}, "callback.url", ["ftp://a/"]),
        ({"handler": None, "callback": {}}, "callback.url", ["/callback/url"]),
        (
            {"handler": None, "callback": {"url": "http://a", "headers": {"Host": "b"}}},
            "callback.headers",
            ["'Host'"],
        ),
        ({"on_conflict": "replace"}, "on_conflict", ["'replace'", "dedupe_key"]),
        ({"on_conflict": "keep"}, "on_conflict", ["'keep'", "dedupe_key"]),
        ({"keys": ["a", "b\n"]}, "keys", ["/keys/1", "control"]),
        ({"dedupe_key": "b\n"}, "dedupe_key", ["/dedupe_key"]),
        ({"handler": "a\n"}, "handler", ["control"]),
        ({"payload": "x" * 65_537}, "payload", ["65536"]),
        ({"on_fire": "explode"}, "on_fire", ['"explode"']),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_is_to_blame_is_named_as_the_client_knows_it(
    connection: Connection, fields: dict[str, Any], param: str, words: list[str]
) -> None:
    """The very field, what it was, what it may be; and no milliseconds, which nobody sent."""
    body = {"handler": "note", "delay": 1, **fields}
    if "at" in fields and "delay" not in fields:
        del body["delay"]
    body = {name: value for name, value in body.items() if value is not None}
    reply = await connection.request("POST", JOBS, body)
    document = check_refusal(reply, 422, "bad-parameter", *words)
    assert document["param"] == param
    assert document["allowed"] != "what the API's documentation says"
    assert " ms" not in document["detail"]


async def test_the_example_follows_what_is_allowed(connection: Connection) -> None:
    """And not null, which needs none."""
    reply = await connection.request("POST", JOBS, {"handler": "note", "at": "tomorrow"})
    allowed = check_refusal(reply, 422, "bad-parameter", "tomorrow")["allowed"]
    assert re.fullmatch(
        r'a time as in RFC 3339, with a zone, such as "[0-9TZ:-]+", or null', allowed
    )


async def test_another_deadline_that_makes_no_sense(connection: Connection) -> None:
    """Moving a job is refused in the same words."""
    job = (await add(connection, handler="note", delay=60)).json()["id"]
    for body, param in (
        ({"delay": 1, "at": "2126-01-01T00:00:00Z"}, "delay"),
        ({}, "delay"),
        ({"at": "2001-01-01T00:00:00Z"}, "at"),
    ):
        refused = await connection.request("PATCH", f"{JOBS}/{job}", body)
        assert check_refusal(refused, 422, "bad-parameter")["param"] == param
    await connection.request("DELETE", f"{JOBS}/{job}")


async def test_on_conflict_without_a_conflict_is_the_default(connection: Connection) -> None:
    """Who spells the default out is not refused."""
    added = await add(connection, handler="note", delay=60, on_conflict="error")
    assert added.status == 201
    await connection.request("DELETE", f"{JOBS}/{added.json()['id']}")


async def test_an_unknown_handler(connection: Connection) -> None:
    """422 with those that are known."""
    check_refusal(
        await add(connection, handler="nope"), 422, "unknown-handler", "'count'", "'note'"
    )


@pytest.mark.parametrize(
    "query",
    [
        "state=odd",
        "limit=0",
        "limit=1001",
        "limit=x",
        "after=",
        "key=",
        "colour=red",
        "state=done&state=done",
    ],
)
async def test_lists_that_make_no_sense(connection: Connection, query: str) -> None:
    """422, and a parameter that is unknown or given twice too."""
    check_refusal(await connection.get(f"{JOBS}?{query}"), 422, "bad-parameter")


@pytest.mark.parametrize("target", [JOBS, f"{JOBS}:batch", f"{JOBS}/x", f"{JOBS}/x/run"])
async def test_jobs_from_a_form(connection: Connection, target: str) -> None:
    """A page of any site could send it: 415, and nothing is stored."""
    body = b'{"handler": "note", "delay": 1}'
    method = "PATCH" if target.endswith("/x") else "POST"
    head = f"{method} {target} HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n"
    connection.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    check_refusal(await connection.reply(), 415, "unsupported-media-type", "-H 'Content")


async def test_a_job_run_by_a_page_of_another_site(connection: Connection) -> None:
    """It needs no body, so that a page could send it with no type at all: the job still waits."""
    address = (await add(connection, delay=3_600)).headers["location"]
    target = f"{address}/run"
    refused = await connection.request("POST", target, headers={"Origin": "http://elsewhere"})
    check_refusal(refused, 415, "unsupported-media-type", "another web site")
    assert (await connection.get(address)).json()["version"] == 1
    assert (await connection.request("POST", target)).status == 200


@pytest.mark.parametrize("after", ["made-up", "0", "x" * 2_000, "g" * 32, "A" * 32])
async def test_a_page_behind_nothing(connection: Connection, after: str) -> None:
    """A cursor that no page can have ended with is refused, not taken for an empty list."""
    reply = await connection.get(f"{JOBS}?after={after}")
    document = check_refusal(reply, 422, "bad-parameter", repr(after[:64]), "`next`")
    assert document["param"] == "after"


@pytest.mark.parametrize(
    ("query", "param"), [("key=a%01", "key"), ("handler=", "handler"), ("state=odd", "state")]
)
async def test_a_parameter_of_a_list_is_named(
    connection: Connection, query: str, param: str
) -> None:
    """The one that is wrong."""
    document = check_refusal(await connection.get(f"{JOBS}?{query}"), 422, "bad-parameter")
    assert document["param"] == param


async def test_methods_that_are_not_taken(connection: Connection) -> None:
    """405 with those that are."""
    for target, allowed in ((JOBS, "POST, GET"), (f"{JOBS}/x", "GET, PATCH, DELETE")):
        refused = await connection.request("PUT", target, {})
        check_refusal(refused, 405, "method-not-allowed")
        assert refused.headers["allow"] == allowed


@pytest.mark.parametrize("etag", ["1", '"1', "", '"1" "2"', "*, *"], ids=repr)
async def test_an_if_none_match_that_is_none(connection: Connection, etag: str) -> None:
    """Refused: a client that waits with it would be answered at once, again and again."""
    address = (await add(connection)).headers["location"]
    headers = {"If-None-Match": etag, "Prefer": "wait=never"}
    reply = await connection.request("GET", f"{address}?x=1", headers=headers)
    document = check_refusal(reply, 422, "bad-parameter")
    assert [error["param"] for error in document["errors"]] == [
        "x",
        "If-None-Match",
        "Prefer: wait",
    ]
