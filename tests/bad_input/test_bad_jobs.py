"""Delayed jobs that make no sense beyond their schema: refused with what and why, none stored."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.acceptance.client import Connection
from tests.acceptance.jobs.application import JOBS, add, post_lines
from tests.acceptance.thread_server import ThreadServer
from tests.bad_input.refusals import check_refusal

FTP: dict[str, Any] = {"handler": None, "callback": {"url": "ftp://a/"}}
HOST: dict[str, Any] = {
    "handler": None,
    "callback": {"url": "http://a", "headers": {"Host": "b"}},
}
# The fields besides `handler` and `delay`, what is to blame, and words of the sentence.
NONSENSE: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"at": "2126-01-01T00:00:00Z", "delay": 5}, "delay", ["delay is 5.0", "at is 2126-01-01"]),
    ({"delay": None}, "delay", ["exactly one", "neither"]),
    ({"at": "2001-01-01T00:00:00Z"}, "at", ["past", "2001-01-01T00:00:00.000Z", "60 seconds"]),
    ({"at": "2126-01-01T00:00:00Z"}, "at", ["limit", "315619200 seconds"]),
    ({"at": "2027-01-01T00:00:00"}, "at", ["timezone"]),
    ({"at": "-5"}, "at", ["date and a time"]),
    ({"delay": 1e10}, "delay", ["10000000000.0", "315619200"]),
    ({"ceiling": 1e10}, "ceiling", ["315619200"]),
    ({"handler": None}, "handler", ["handler or a callback"]),
    ({"callback": {"url": "http://example.com"}}, "handler", ["handler or a callback"]),
    ({"handler": "a\n"}, "handler", ["control"]),
    ({"handler": "count", "payload": "x"}, "payload", ["int"]),
    (FTP, "callback.url", ["ftp://a/"]),
    ({"handler": None, "callback": {"url": "http://a@b/"}}, "callback.url", ["url"]),
    ({"handler": None, "callback": {}}, "callback.url", ["/callback/url"]),
    (HOST, "callback.headers", ["'Host'"]),
    ({"payload": "x" * 65_537}, "payload", ["65536"]),
    ({"keys": ["k"] * 101}, "keys", ["/keys"]),
    ({"keys": ["a", "b\n"]}, "keys", ["/keys/1", "control"]),
    ({"on_fire": "explode"}, "on_fire", ['"explode"']),
    ({"on_fire": "cancel"}, "on_fire", ["no keys"]),
    ({"keys": ["k"], "until": {"count": 2}}, "until", ["1 to 1"]),
    ({"until": "all"}, "until", ["no keys"]),
    ({"since": "0"}, "since", ["no keys"]),
    ({"keys": ["k"], "since": {"k": None}}, "since", ["/since/k: it is null: input should be a"]),
    ({"keys": ["k"], "since": {"other": "0"}}, "since", ["'other'"]),
    ({"keys": ["k"], "since": {f"k{n}": "0" for n in range(101)}}, "since", ["/since"]),
    ({"dedupe_key": "b\n"}, "dedupe_key", ["/dedupe_key"]),
    ({"on_conflict": "replace"}, "on_conflict", ["'replace'", "dedupe_key"]),
    ({"on_conflict": "keep"}, "on_conflict", ["'keep'", "dedupe_key"]),
    ({"max_attempts": 1.0}, "max_attempts", ["1 to 1000"]),
]


@pytest.mark.usefixtures("nothing_is_done")
async def test_what_is_to_blame_is_named_as_the_client_knows_it(connection: Connection) -> None:
    """The very field, what it was, what it may be; and no milliseconds, which nobody sent."""
    for fields, param, words in NONSENSE:
        body = {"handler": "note", "delay": 1, **fields}
        if "at" in fields and "delay" not in fields:
            del body["delay"]
        body = {name: value for name, value in body.items() if value is not None}
        reply = await connection.request("POST", JOBS, body)
        case = str(fields)[:99]
        document = check_refusal(reply, 422, "bad-parameter", *words, case=case)
        assert document["param"] == param, f"{case}: {document}"
        assert document["allowed"] != "what the API's documentation says", case
        assert " ms" not in document["detail"], f"{case}: {document}"


@pytest.mark.usefixtures("nothing_is_done")
async def test_batches_that_are_none(server: ThreadServer) -> None:
    """Refused whole, before anything is done."""
    for body, status, slug in (
        (b"", 422, "bad-parameter"),
        (b"\n\n", 422, "bad-parameter"),
        (b"{}\n" * 10_001, 422, "bad-parameter"),
        (b"x" * (16 * 1024 * 1024 + 1), 413, "body-too-large"),
    ):
        async with await Connection.open(server.address) as connection:
            check_refusal(await post_lines(connection, body), status, slug, case=body[:9])


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


async def test_a_job_run_by_a_page_of_another_site(connection: Connection) -> None:
    """It needs no body, so that a page could send it with no type at all: the job still waits."""
    address = (await add(connection, delay=3_600)).headers["location"]
    target = f"{address}/run"
    refused = await connection.request("POST", target, headers={"Origin": "http://elsewhere"})
    check_refusal(refused, 415, "unsupported-media-type", "another web site")
    assert (await connection.get(address)).json()["version"] == 1
    assert (await connection.request("POST", target)).status == 200


async def test_a_page_behind_nothing(connection: Connection) -> None:
    """A cursor that no page can have ended with is refused, not taken for an empty list."""
    for after in ("made-up", "0", "x" * 2_000, "g" * 32, "A" * 32, ""):
        reply = await connection.get(f"{JOBS}?after={after}")
        words = (repr(after[:64]), "`next`")
        document = check_refusal(reply, 422, "bad-parameter", *words, case=after[:9])
        assert document["param"] == "after"
