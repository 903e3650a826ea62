"""Bodies that are no JSON, or too much of it, and what no schema says of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from tests.acceptance.client import Connection, Reply
from tests.acceptance.thread_server import ThreadServer
from tests.bad_input.declared import Endpoint, post
from tests.bad_input.refusals import check_refusal, errors_of
from tests.nightly import IN_FULL
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("nothing_is_done")

FIRE, BATCH, WATCH = "/purgatory/keys/k", "/purgatory/keys", "/purgatory/watch"
TEN_MB = 10 * 1024 * 1024


async def _post(connection: Connection, target: str, body: Any) -> Reply:
    """Send a value as JSON, or bytes as they are."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.write(head.encode() + body)
    return await connection.reply()


async def test_what_a_form_of_any_site_can_send(
    connection: Connection, endpoints: list[Endpoint]
) -> None:
    """415 says how to send it, also to those who use curl, and whatever is in it."""
    for endpoint in endpoints:
        for media_type in (
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "text/plain;charset=UTF-8",
            " Text/Plain ",
        ):
            for body in (b'{"value": 1}', b"", b"x" * 2 * 1024 * 1024):
                if not endpoint.takes_content or (len(body) > 99 and "form" in media_type):
                    continue
                reply = await post(connection, endpoint, body, f"Content-Type: {media_type}")
                words = (media_type.strip(), "-H 'Content")
                check_refusal(reply, 415, "unsupported-media-type", *words, case=endpoint)


async def test_a_body_that_is_compressed(connection: Connection, endpoints: list[Endpoint]) -> None:
    """415 says so, rather than that it is no JSON, and how to send it (RFC 9110, 15.5.16)."""
    body = gzip.compress(b'{"value": 1}')
    for endpoint in endpoints:
        if endpoint.takes_content:
            for coding in ("gzip", "GZIP", "identity, br", "zstd"):
                lines = ["Content-Type: application/json", f"Content-Encoding: {coding}"]
                reply = await post(connection, endpoint, body, *lines)
                words = (coding, "as it is")
                document = check_refusal(
                    reply, 415, "unsupported-media-type", *words, case=endpoint
                )
                assert document["param"] == "Content-Encoding"
                assert reply.headers["accept-encoding"] == "identity"


async def test_a_page_of_another_site_that_names_no_type(
    connection: Connection, endpoints: list[Endpoint]
) -> None:
    """Its browser asks nobody for that either, but says where it is from."""
    for endpoint in endpoints:
        for lines in (
            ["Origin: http://elsewhere"],
            ["Origin: null"],
            ["Origin: http://h:81"],
            ["Origin: http://h:80", "Sec-Fetch-Site: cross-site"],
            ["Origin: http://h:80", "Sec-Fetch-Site: same-site"],
            ["Origin: http://elsewhere", "Content-Type: "],
            ["Sec-Fetch-Site: cross-site"],
            ["Sec-Fetch-Site: same-site"],
            ["Sec-Fetch-Site: cross-site, same-origin"],
        ):
            if endpoint.takes_content:
                reply = await post(connection, endpoint, b"", *lines)
                case = f"{endpoint} with {lines}"
                check_refusal(reply, 415, "unsupported-media-type", "another web site", case=case)


async def test_other_types_are_read(connection: Connection, endpoints: list[Endpoint]) -> None:
    """JSON under any name, none at all, and what pages of this site send."""
    for endpoint in endpoints:
        for lines in (
            [],
            ["Content-Type: application/json"],
            ["Content-Type: application/json; charset=utf-8"],
            ["Content-Type: application/cloudevents+json", "Origin: http://elsewhere"],
            ["Origin: http://h:80"],
            ["Origin: http://outside", "Sec-Fetch-Site: same-origin"],
            ["Sec-Fetch-Site: none"],
            ["Content-Encoding: Identity"],
        ):
            if endpoint.schema is not None:
                reply = await post(connection, endpoint, b"{", *lines)
                check_refusal(reply, 400, "bad-json", case=f"{endpoint} with {lines}")


NOT_JSON = {
    "text": b"hello",
    "half an object": b'{"value": ',
    "single quotes": b"{'value': 1}",
    "trailing comma": b'{"value": 1,}',
    "two documents": b"{}{}",
    "blank": b" ",
    "null character": b"\0",
    "not UTF-8": b'{"value": "\xff"}',
    "UTF-16": '{"value": 1}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"value": 1}',
    "a control character in a string": b'{"value": "\n"}',
    "a form": b"value=1",
    "many digits": b'{"value": ' + b"9" * 20_000 + b"}",
    "leading zero": b'{"value": 01}',
    "hexadecimal": b'{"value": 0x1}',
    "comment": b'{"value": 1 /* one */}',
}
DEEP = {
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"value":' * 6_000,
    "deep keys": b'{"keys":' * 20_000,
    "deep items": b'[{"value":' * 20_000,
    "deep and whole": b'{"value":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
}


async def test_a_body_that_is_no_json(connection: Connection, endpoints: list[Endpoint]) -> None:
    """400 says where the JSON ends to be one; 413 of a larger one names the limit."""
    for endpoint in endpoints:
        if endpoint.schema is None:
            continue
        bodies = NOT_JSON if endpoint.name == "fire_key" else {**NOT_JSON, "none": b""}
        for name, body in bodies.items():
            await _check_size(connection, endpoint, name, body, 400, "bad-json", "JSON")


async def test_a_deep_body(connection: Connection, endpoints: list[Endpoint]) -> None:
    """422 names the field and what is allowed there, and the process does not crash."""
    for endpoint in endpoints:
        if endpoint.schema is not None:
            for name, body in DEEP.items():
                await _check_size(connection, endpoint, name, body, 422, "bad-parameter", "allowed")


async def _check_size(
    connection: Connection,
    endpoint: Endpoint,
    name: str,
    body: bytes,
    status: int,
    slug: str,
    word: str,
) -> None:
    async with await Connection.open(connection.writer.get_extra_info("peername")) as other:
        reply = await post(other, endpoint, body)
    limit = endpoint.max_body
    if len(body) > limit:
        status, slug, word = 413, "body-too-large", str(limit)
    check_refusal(reply, status, slug, word, case=f"{endpoint} with {name}")


@IN_FULL
async def test_a_body_that_is_announced_and_too_large(
    server: ThreadServer, endpoints: list[Endpoint]
) -> None:
    """It is refused before it is sent: a client that asks first need not send it."""
    for endpoint in endpoints:
        limit = endpoint.max_body
        if limit:
            async with await Connection.open(server.address) as connection:
                head = f"{endpoint.method} {endpoint.target()} HTTP/1.1\r\nHost: h\r\n"
                head += f"Content-Length: {limit + 1}\r\nExpect: 100-continue\r\n\r\n"
                connection.write(head.encode())
                document = check_refusal(
                    await connection.reply(), 413, "body-too-large", str(limit), case=endpoint
                )
            assert document["limit"] == limit


def _chunks() -> Iterable[bytes]:
    for _ in range(TEN_MB // 65_536):
        yield b"x" * 65_536


@IN_FULL
async def test_a_body_of_10_mb(server: ThreadServer) -> None:
    """413 names the limit, and reaches a client that sends everything before it reads."""
    for target in (FIRE, BATCH, WATCH):
        for content in (b"x" * TEN_MB, _chunks()):
            with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
                # The server has a thread of its own.
                answer = client.post(target, content=content)  # noqa: ASYNC212
            assert answer.status_code == 413
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["limit"] > 0
            assert str(answer.json()["limit"]) in answer.json()["detail"]


async def test_what_is_allowed_is_told_of_the_very_field(connection: Connection) -> None:
    """Where it stands in what the client sent, in words, and nothing of how it is checked."""
    count = "a whole number from 1 to 100"
    for target, body, pointer, param, allowed in (
        (WATCH, {"until": "some"}, "/until", "until", '"any" or "all", or an object with the'),
        (WATCH, {"until": {}}, "/until/count", "until.count", count),
        (WATCH, {"until": {"count": 2}}, "/until/count", "until.count", "from 1 to 1,"),
        (WATCH, {"until": {"count": 1.0}}, "/until/count", "until.count", count),
        (WATCH, {"until": {"count": 1, "of": 2}}, "/until/of", "until.of", "the field count"),
        *(
            (WATCH, {"wait": wait}, "/wait", "wait", 'such as 25, "500ms"')
            for wait in (True, -1, "soon", "nan", 10**400, 1e300)
        ),
        (WATCH, {"limit": 1.0}, "/limit", "limit", "a whole number from 1 to 1000"),
        (WATCH, {"keys": {"k": 0}}, "/keys/k", "keys", "a text, such as"),
        (WATCH, {"keys": {"a/b~c": 1}}, "/keys/a~1b~0c", "keys", "a text, such as"),
        (WATCH, {"keys": {}}, "/keys", "keys", "an object of 1 to 100 names"),
        (WATCH, {"unknown": 1}, "/unknown", "unknown", "the fields keys, wait, until"),
        (WATCH, None, "", "body", "an object with the fields keys"),
        (FIRE, {"values": 1}, "/values", "values", "the field value"),
        (BATCH, {}, "", "body", "a list of 1 to 1000 items, each of them an object"),
        (BATCH, [{"key": "k"}, {"key": 1}], "/1/key", "key", "1 to 256 characters"),
        (BATCH, [{"key": "k"}, {"key": "\n"}], "/1/key", "key", "none of them control"),
        (BATCH, [{"key": "k"}, {"key": "k", "value": "x" * 65_536}], "/1/value", "value", "65536"),
    ):
        sent: Any = body
        if isinstance(body, dict) and target == WATCH:
            sent = {"keys": {"k": None}, "wait": 0, **body}
        reply = await _post(connection, target, sent)
        document = check_refusal(reply, 422, "bad-parameter", pointer, case=str(sent)[:99])
        [error] = errors_of(document)
        assert (error["pointer"], document["param"]) == (pointer, param), document
        assert allowed in document["detail"], document
        for inner in ("literal", "CountOfKeys", "float", "str]"):
            assert inner not in reply.body.decode()


async def test_a_cursor_in_a_body(connection: Connection) -> None:
    """A cursor that is none of ours is the same mistake in a body as in a query."""
    for cursor in ("x", "", "0" * 1000, "0123456789ab-" + "9" * 30, "ü"):
        body = {"keys": {"good": "0", "k": cursor}, "wait": 0}
        document = check_refusal(await _post(connection, WATCH, body), 400, "bad-cursor", "/keys/k")
        assert document["param"] == "keys"
        assert [error["pointer"] for error in document["errors"]] == ["/keys/k"]


async def test_a_value_over_64_kib(connection: Connection) -> None:
    """422 or 413 names the size and the limit."""
    for value in ("x" * 65_535, "\u2602" * 21_845, list(range(14_000)), list(range(40_000))):
        body = json.dumps({"value": value}, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(body) > 65_536
        reply = await _post(connection, FIRE, body)
        if len(body) <= 3 * 65_536 + 1024:
            check_refusal(reply, 422, "bad-parameter", "65536")
        else:
            check_refusal(reply, 413, "body-too-large", "197632")


async def test_several_mistakes(connection: Connection) -> None:
    """All are told at once, each with its value; and the answer to a large bad body is small."""
    body = {"keys": {"k": None}, "wait": "soon", "until": "x" * 1000, "limit": -5, "min": []}
    errors = errors_of(check_refusal(await _post(connection, WATCH, body), 422, "bad-parameter"))
    shown = {error["pointer"]: error["detail"].partition(":")[0] for error in errors}
    assert shown["/until"] == f'it is "{"x" * 64}", none of what is allowed'
    assert (shown["/limit"], shown["/min"]) == ("it is -5", "it is a list")
    assert "500ms" in str(errors) and len(errors) == 4
    reply = await _post(connection, BATCH, [{"x" * 500: 1}] * 1000)
    assert len(errors_of(check_refusal(reply, 422, "bad-parameter"))) <= 20
    assert len(reply.body) < 10_000
