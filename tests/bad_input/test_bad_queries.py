"""Cursors, entity tags, keys and addresses that no declaration describes."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.acceptance.client import Connection
from tests.bad_input.refusals import check_refusal, errors_of

pytestmark = pytest.mark.usefixtures("nothing_is_done")

WATCH = "/purgatory/watch/k"


async def test_a_cursor_that_is_none_of_ours(connection: Connection) -> None:
    """400 for a text that is no cursor, and for one from the future: no answer has had it."""
    epoch, _, head = (await connection.get(f"{WATCH}?wait=0")).cursor.partition("-")
    for cursor in (
        *("x", "00", "-1", "-5", "0123456789ab-", "g123456789ab-5", "0123456789AB-5"),
        *("0123456789ab-1.5", "0123456789ab-" + "9" * 19, "0123456789ab-٣", " 0", "null"),
        *('"0"', "0" * 3000, "", "0\0"),
        *(f"{epoch}-{int(head) + offset}" for offset in (1, 2**31, 2**63 - 1, 10**18 - 1)),
    ):
        reply = await connection.get(f"{WATCH}?cursor={quote(cursor)}")
        check_refusal(reply, 400, "bad-cursor", case=cursor[:30])


async def test_a_cursor_of_another_epoch(connection: Connection) -> None:
    """410 tells the cursors from which to go on, and never hangs."""
    reply = await connection.get(f"{WATCH}?cursor=0123456789ab-1")
    document = check_refusal(reply, 410, "cursor-expired")
    for name in ("earliest", "head"):
        assert (await connection.get(f"{WATCH}?wait=0&cursor={document[name]}")).status == 200


async def test_an_entity_tag_that_is_no_cursor(connection: Connection) -> None:
    """400 names the header, not a parameter that was not given."""
    for etag in ('"x"', '""', '"é"'):
        for method, target, name in (
            ("GET", f"{WATCH}?wait=0", "If-None-Match"),
            ("POST", "/purgatory/keys/k", "If-Match"),
        ):
            headers = {name: etag, "Content-Length": "0"}
            reply = await connection.request(method, target, headers=headers)
            document = check_refusal(reply, 400, "bad-cursor", name, case=etag)
            assert document["param"] == name


async def test_what_is_right_is_not_among_the_mistakes(connection: Connection) -> None:
    """A cursor, good or bad, is not looked up beside other mistakes; an encoded name is one."""
    for query, params in (
        ("cursor=&limit=0&min=0", ["limit", "min"]),
        ("wait=0&%77ait=1&=5", ["", "wait"]),
    ):
        reply = await connection.get(f"{WATCH}?{query}")
        errors = errors_of(check_refusal(reply, 422, "bad-parameter", case=query))
        assert sorted(error["param"] for error in errors) == params


async def test_a_key_in_a_path_that_is_not_utf_8(connection: Connection) -> None:
    """422 says so, for every method."""
    for method, place in (
        ("GET", "/purgatory/watch/"),
        ("GET", "/purgatory/keys/"),
        ("POST", "/purgatory/keys/"),
        ("DELETE", "/purgatory/keys/"),
    ):
        for key in ("%FF", "a%C3", "%C0%AF", "%ED%A0%80", "%F4%90%80%80"):
            reply = await connection.request(method, place + key, headers={"Content-Length": "0"})
            document = check_refusal(reply, 422, "bad-parameter", "UTF-8", case=(method, key))
            assert document["param"] == "key"


async def test_a_key_in_a_body(connection: Connection) -> None:
    """422, and the good ones beside it are not fired."""
    for key in ("", "x" * 300, "\0", "a\nb", "\x85"):
        for target, body in (
            ("/purgatory/watch", {"keys": {key: None}, "wait": 0}),
            ("/purgatory/watch", {"keys": {"good": None, key: "0"}, "wait": 0}),
            ("/purgatory/keys", [{"key": "good"}, {"key": key}]),
        ):
            reply = await connection.request("POST", target, body)
            check_refusal(reply, 422, "bad-parameter", "1 to 256", case=repr(key[:9]))


async def test_what_is_wrong_with_a_key_is_said(connection: Connection) -> None:
    """The sentence names the length, or the character, and the limit."""
    for key, *words in (("x" * 300, "1 to 256", "300"), ("a%00", "\\x00", "control")):
        reply = await connection.get(f"/purgatory/watch/{key}")
        check_refusal(reply, 422, "bad-parameter", *words)


async def test_an_address_that_is_not_there(connection: Connection) -> None:
    """404 as problem details, that names the address, or the kind of problem asked for."""
    for target in ("/purgatory", "/purgatory/nothing", "/purgatory/wait"):
        reply = await connection.get(target)
        assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")
        assert target in reply.json()["detail"]
        assert reply.json()["type"] == "/purgatory/problems/not-found"
    check_refusal(await connection.get("/purgatory/problems/x"), 404, "not-found", "'x'")
