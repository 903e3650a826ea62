"""Bodies that are no JSON, the wrong JSON, or too much of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from tests.acceptance.client import Connection, Reply
from tests.acceptance.thread_server import ThreadServer
from tests.bad_input.refusals import check_refusal
from tests.patience import PATIENCE_S

FIRE, BATCH, WATCH = "/purgatory/keys/k", "/purgatory/keys", "/purgatory/watch"
TEN_MB = 10 * 1024 * 1024


async def _post(connection: Connection, target: str, body: bytes) -> Reply:
    head = f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.write(head.encode() + body)
    return await connection.reply()


@pytest.fixture(autouse=True)
def nothing_is_fired(server: ThreadServer) -> Iterable[None]:
    """A refused request has fired nothing."""
    before = server.purgatory.signals.statistics()
    yield
    assert server.purgatory.signals.statistics() == before


async def _post_as(
    connection: Connection, target: str, body: bytes, *lines: str, method: str = "POST"
) -> Reply:
    head = [f"{method} {target} HTTP/1.1", "Host: h:80", f"Content-Length: {len(body)}", *lines]
    connection.write("\r\n".join([*head, "", ""]).encode() + body)
    return await connection.reply()


@pytest.mark.parametrize("target", [FIRE, BATCH, WATCH])
@pytest.mark.parametrize(
    "media_type",
    [
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain;charset=UTF-8",
        " Text/Plain ",
    ],
)
async def test_what_a_form_of_any_site_can_send(
    connection: Connection, target: str, media_type: str
) -> None:
    """415 says how to send it, also to those who use curl, and also where there is no body."""
    for body in (b'{"value": 1}', b""):
        reply = await _post_as(connection, target, body, f"Content-Type: {media_type}")
        check_refusal(reply, 415, "unsupported-media-type", media_type.strip(), "-H 'Content")


@pytest.mark.parametrize("target", [FIRE, BATCH, WATCH])
async def test_a_body_that_is_compressed(connection: Connection, target: str) -> None:
    """415 says so, rather than that it is no JSON, and how to send it (RFC 9110, 15.5.16)."""
    body = gzip.compress(b'{"value": 1}')
    for coding in ("gzip", "GZIP", "identity, br", "zstd"):
        lines = ["Content-Type: application/json", f"Content-Encoding: {coding}"]
        reply = await _post_as(connection, target, body, *lines)
        document = check_refusal(reply, 415, "unsupported-media-type", coding, "as it is")
        assert document["param"] == "Content-Encoding"
        assert reply.headers["accept-encoding"] == "identity"
    reply = await _post_as(connection, target, b"{", "Content-Encoding: Identity")
    check_refusal(reply, 400, "bad-json")


@pytest.mark.parametrize("target", [FIRE, BATCH, WATCH])
async def test_a_form_that_is_too_large(connection: Connection, target: str) -> None:
    """Its type is looked at first: no body of it is worth reading."""
    body = b"x" * 2 * 1024 * 1024
    reply = await _post_as(connection, target, body, "Content-Type: text/plain")
    check_refusal(reply, 415, "unsupported-media-type", "text/plain")


@pytest.mark.parametrize(
    "lines",
    [
        ["Origin: http://elsewhere"],
        ["Origin: null"],
        ["Origin: http://h:81"],
        ["Origin: http://h:80", "Sec-Fetch-Site: cross-site"],
        ["Origin: http://h:80", "Sec-Fetch-Site: same-site"],
        ["Origin: http://elsewhere", "Content-Type: "],
        ["Sec-Fetch-Site: cross-site"],
        ["Sec-Fetch-Site: same-site"],
        ["Sec-Fetch-Site: cross-site, same-origin"],
    ],
    ids=str,
)
async def test_a_page_of_another_site_that_names_no_type(
    connection: Connection, lines: list[str]
) -> None:
    """Its browser asks nobody for that either, but says where it is from."""
    for target in (FIRE, BATCH, WATCH):
        reply = await _post_as(connection, target, b"", *lines)
        check_refusal(reply, 415, "unsupported-media-type", "another web site")


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Content-Type: application/json"],
        ["Content-Type: application/json; charset=utf-8"],
        ["Content-Type: application/cloudevents+json", "Origin: http://elsewhere"],
        ["Origin: http://h:80"],
        ["Origin: http://outside", "Sec-Fetch-Site: same-origin"],
        ["Sec-Fetch-Site: none"],
    ],
    ids=str,
)
async def test_other_types_are_read(connection: Connection, lines: list[str]) -> None:
    """JSON under any name, none at all, and what pages of this site send."""
    for target in (FIRE, BATCH, WATCH):
        reply = await _post_as(connection, target, b"{", *lines)
        check_refusal(reply, 400, "bad-json")


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
    "deep arrays": b"[" * 60_000,
    "deep objects": b'{"value":' * 6_000,
    "deep and whole": b'{"value":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
}


@pytest.mark.parametrize("target", [FIRE, BATCH, WATCH])
@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP.keys())
async def test_a_deep_body(connection: Connection, target: str, body: bytes) -> None:
    """422 names the field and what is allowed there, whether or not the rest is JSON."""
    check_refusal(await _post(connection, target, body), 422, "bad-parameter", "allowed")


@pytest.mark.parametrize("target", [FIRE, BATCH, WATCH])
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON.keys())
async def test_a_body_that_is_no_json(connection: Connection, target: str, body: bytes) -> None:
    """400 says where the JSON ends to be one."""
    check_refusal(await _post(connection, target, body), 400, "bad-json", "JSON")


@pytest.mark.parametrize("target", [BATCH, WATCH])
async def test_no_body_at_all(connection: Connection, target: str) -> None:
    """400 where there has to be one."""
    check_refusal(await _post(connection, target, b""), 400, "bad-json")


@pytest.mark.parametrize("target", [BATCH, WATCH])
@pytest.mark.parametrize("opening", [b"[", b'{"keys":', b'[{"value":'], ids=repr)
async def test_100_000_levels(connection: Connection, target: str, opening: bytes) -> None:
    """A document as deep as that is refused, and does not crash the process."""
    levels = 100_000 if len(opening) == 1 else 20_000
    check_refusal(await _post(connection, target, opening * levels), 422, "bad-parameter")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
async def test_numbers_that_json_has_not(connection: Connection, number: str) -> None:
    """NaN and the infinities are refused wherever they stand."""
    for target, body in (
        (FIRE, '{"value": %s}'),
        (FIRE, '{"value": [1, {"a": %s}]}'),
        (BATCH, '[{"key": "k", "value": %s}]'),
        (WATCH, '{"keys": {"k": null}, "wait": %s}'),
        (WATCH, '{"keys": {"k": null}, "wait": 0, "limit": %s}'),
        (WATCH, '{"keys": {"k": %s}, "wait": 0}'),
    ):
        reply = await _post(connection, target, (body % number).encode())
        assert reply.status in (400, 422), (body, reply)
        check_refusal(reply, reply.status, "bad-json" if reply.status == 400 else "bad-parameter")


SHAPES: dict[str, list[Any]] = {
    FIRE: [[], 1, "text", None, True, {"values": 1}, {"value": 1, "key": "k"}, [{"value": 1}]],
    BATCH: [
        {},
        [],
        None,
        "text",
        [None],
        [[]],
        [{}],
        [{"value": 1}],
        [{"key": 1}],
        [{"key": None}],
        [{"key": ["k"]}],
        [{"key": "k", "wait": 1}],
        {"key": "k"},
        [{"key": "k"}] * 1001,
    ],
    WATCH: [
        [],
        {},
        None,
        "k",
        {"keys": {}},
        {"keys": None},
        {"keys": []},
        {"keys": ["k"]},
        {"keys": "k"},
        {"keys": {"k": 0}},
        {"keys": {"k": True}},
        {"keys": {"k": []}},
        {"keys": {"k": {"cursor": "0"}}},
        {"keys": {f"k{number}": None for number in range(101)}},
        {"keys": {"k": None}, "unknown": 1},
        {"keys": {"k": None}, "wait": -1},
        {"keys": {"k": None}, "wait": "soon"},
        {"keys": {"k": None}, "wait": "nan"},
        {"keys": {"k": None}, "wait": True},
        {"keys": {"k": None}, "wait": []},
        {"keys": {"k": None}, "wait": 10**400},
        {"keys": {"k": None}, "wait": 1e300},
        {"keys": {"k": None}, "until": "some"},
        {"keys": {"k": None}, "until": None},
        {"keys": {"k": None}, "until": 1},
        {"keys": {"k": None}, "until": {}},
        {"keys": {"k": None}, "until": {"count": 0}},
        {"keys": {"k": None}, "until": {"count": -1}},
        {"keys": {"k": None}, "until": {"count": 2}},
        {"keys": {"k": None}, "until": {"count": 1.0}},
        {"keys": {"k": None}, "until": {"count": True}},
        {"keys": {"k": None}, "until": {"count": "1"}},
        {"keys": {"k": None}, "until": {"count": 10**30}},
        {"keys": {"k": None}, "until": {"count": 1, "of": 2}},
        {"keys": {"k": None}, "limit": 0},
        {"keys": {"k": None}, "limit": 1001},
        {"keys": {"k": None}, "limit": "1"},
        {"keys": {"k": None}, "limit": 1.0},
        {"keys": {"k": None}, "limit": None},
        {"keys": {"k": None}, "limit": 10**30},
        {"keys": {"k": None}, "min": 0},
        {"keys": {"k": None}, "min": 10**30},
        {"keys": {"k": None}, "min": True},
    ],
}


@pytest.mark.parametrize(
    ("target", "body"),
    [
        pytest.param(target, body, id=f"{target}-{number}-{str(body)[:40]}")
        for target, bodies in SHAPES.items()
        for number, body in enumerate(bodies)
    ],
)
async def test_json_of_the_wrong_shape(connection: Connection, target: str, body: Any) -> None:
    """422 points at what is wrong."""
    if isinstance(body, dict) and "wait" not in body:
        # Were it taken, the answer would come at once.
        body = {**body, "wait": 0} if "keys" in body else body
    reply = await _post(connection, target, json.dumps(body).encode())
    document = check_refusal(reply, 422, "bad-parameter")
    for error in document.get("errors", []):
        assert error["detail"] and (error["pointer"] == "" or error["pointer"].startswith("/"))


@pytest.mark.parametrize(
    "cursor", ["x", "", "0" * 1000, "0123456789ab-" + "9" * 30, "ü"], ids=lambda cursor: cursor[:9]
)
async def test_a_cursor_in_a_body(connection: Connection, cursor: str) -> None:
    """A cursor that is none of ours is the same mistake in a body as in a query."""
    body = json.dumps({"keys": {"good": "0", "k": cursor}, "wait": 0}).encode()
    document = check_refusal(await _post(connection, WATCH, body), 400, "bad-cursor", "/keys/k")
    assert document["param"] == "keys"
    assert [error["pointer"] for error in document["errors"]] == ["/keys/k"]


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (FIRE, b'{"value": 1, "value": 2}'),
        (BATCH, b'[{"key": "a", "key": "b"}]'),
        (WATCH, b'{"keys": {"k": "0", "k": null}, "wait": 0}'),
        (WATCH, b'{"keys": {"k": null}, "wait": 0, "wait": 0}'),
        (WATCH, b'{"keys": {"k": null}, "wait": 0, "until": {"count": 1, "count": 1}}'),
    ],
)
async def test_a_member_given_twice(connection: Connection, target: str, body: bytes) -> None:
    """A name twice in one object is refused: there is no telling which of the two was meant."""
    check_refusal(await _post(connection, target, body), 422, "bad-parameter", "twice")


@pytest.mark.parametrize(
    "value",
    ["x" * 65_535, "\u2602" * 21_845, list(range(14_000)), list(range(40_000))],
    ids=["text", "umbrellas", "list", "long list"],
)
async def test_a_value_over_64_kib(connection: Connection, value: Any) -> None:
    """422 or 413 names the size and the limit."""
    body = json.dumps({"value": value}, ensure_ascii=False, separators=(",", ":")).encode()
    assert len(body) > 65_536
    reply = await _post(connection, FIRE, body)
    if len(body) <= 3 * 65_536 + 1024:
        check_refusal(reply, 422, "bad-parameter", "65536")
    else:
        check_refusal(reply, 413, "body-too-large", "197632")


async def test_pointers_are_json_pointers(connection: Connection) -> None:
    """A slash or a tilde in a name is escaped as RFC 6901 has it."""
    body = json.dumps({"keys": {"a/b~c": 1}, "wait": 0}).encode()
    document = check_refusal(await _post(connection, WATCH, body), 422, "bad-parameter")
    assert document["errors"][0]["pointer"] == "/keys/a~1b~0c"


@pytest.mark.parametrize(
    ("target", "body", "pointer", "param", "allowed"),
    [
        (WATCH, {"until": "some"}, "/until", "until", '"any" or "all", or an object with the'),
        (WATCH, {"until": None}, "/until", "until", "the field count"),
        (WATCH, {"until": {}}, "/until/count", "until.count", "a whole number from 1 to 100"),
        (WATCH, {"until": {"count": 0}}, "/until/count", "until.count", "from 1 to 100"),
        (WATCH, {"until": {"count": 2}}, "/until/count", "until.count", "from 1 to 1,"),
        (WATCH, {"until": {"count": 1, "of": 2}}, "/until/of", "until.of", "the field count"),
        (WATCH, {"wait": True}, "/wait", "wait", 'such as 25, "500ms"'),
        (WATCH, {"limit": "1"}, "/limit", "limit", "a whole number from 1 to 1000"),
        (WATCH, {"keys": {"k": 0}}, "/keys/k", "keys", "a text, such as"),
        (WATCH, {"keys": {}}, "/keys", "keys", "an object of 1 to 100 names"),
        (WATCH, {"unknown": 1}, "/unknown", "unknown", "the fields keys, wait, until"),
        (WATCH, None, "", "body", "an object with the fields keys"),
        (FIRE, {"values": 1}, "/values", "values", "the field value"),
        (BATCH, {}, "", "body", "a list of 1 to 1000 items, each of them an object"),
        (BATCH, [{"key": "k"}, {"key": 1}], "/1/key", "key", "1 to 256 characters"),
        (BATCH, [{"key": "k"}, {}], "/1/key", "key", "none of them control"),
    ],
    ids=str,
)
async def test_what_is_allowed_is_told_of_the_very_field(
    connection: Connection, target: str, body: Any, pointer: str, param: str, allowed: str
) -> None:
    """Where it stands in what the client sent, and nothing of how it is checked."""
    if target == WATCH and body is not None:
        body = {"keys": {"k": None}, "wait": 0, **body}
    reply = await _post(connection, target, json.dumps(body).encode())
    document = check_refusal(reply, 422, "bad-parameter", pointer, allowed)
    assert (document["param"], allowed in document["allowed"]) == (param, True), document
    [error] = document["errors"]
    assert (error["pointer"], error["allowed"]) == (pointer, document["allowed"])
    for inner in ("literal", "CountOfKeys", "float", "str]"):
        assert inner not in reply.body.decode()


@pytest.mark.parametrize(
    ("item", "field"),
    [({"key": "\n"}, "key"), ({"key": "k", "value": "x" * 65_536}, "value")],
    ids=["key", "value"],
)
async def test_what_no_schema_says_of_an_item(
    connection: Connection, item: dict[str, Any], field: str
) -> None:
    """It is found at the very field, too."""
    reply = await _post(connection, BATCH, json.dumps([{"key": "good"}, item]).encode())
    document = check_refusal(reply, 422, "bad-parameter", f"/1/{field}: ")
    assert document["param"] == field
    assert [error["pointer"] for error in document["errors"]] == [f"/1/{field}"]


async def test_a_value_that_is_refused_is_named(connection: Connection) -> None:
    """Its beginning, where it is not a whole object."""
    body = {"keys": {"k": None}, "wait": 0, "until": "x" * 1000, "limit": -5, "min": []}
    reply = await _post(connection, WATCH, json.dumps(body).encode())
    errors = check_refusal(reply, 422, "bad-parameter")["errors"]
    shown = {error["pointer"]: error["detail"].partition(":")[0] for error in errors}
    assert shown["/until"] == f'it is "{"x" * 64}", none of what is allowed'
    assert (shown["/limit"], shown["/min"]) == ("it is -5", "it is a list")


async def test_many_mistakes_are_told_briefly(connection: Connection) -> None:
    """The answer to a large bad body is a small one."""
    body = json.dumps([{"x" * 500: 1}] * 1000).encode()
    reply = await _post(connection, BATCH, body)
    document = check_refusal(reply, 422, "bad-parameter")
    assert len(document["errors"]) <= 20
    assert len(reply.body) < 10_000


def _chunks() -> Iterable[bytes]:
    for _ in range(TEN_MB // 65_536):
        yield b"x" * 65_536


@pytest.mark.parametrize("target", [FIRE, BATCH, WATCH])
@pytest.mark.parametrize("way", ["content-length", "chunked"])
def test_a_body_of_10_mb(server: ThreadServer, target: str, way: str) -> None:
    """413 names the limit, and reaches a client that sends everything before it reads."""
    for _ in range(5):
        content = b"x" * TEN_MB if way == "content-length" else _chunks()
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
            answer = client.post(target, content=content)
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["limit"] > 0
        assert str(answer.json()["limit"]) in answer.json()["detail"]


@pytest.mark.parametrize("target", [FIRE, BATCH, WATCH])
async def test_a_body_that_is_announced_and_too_large(connection: Connection, target: str) -> None:
    """It is refused before it is sent: a client that asks first need not send it."""
    head = f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {TEN_MB}\r\n"
    connection.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
    check_refusal(await connection.reply(), 413, "body-too-large")
