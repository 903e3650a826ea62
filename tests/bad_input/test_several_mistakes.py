"""More than one parameter that is wrong: all of them are told at once."""

from __future__ import annotations

import pytest

from tests.acceptance.client import Connection
from tests.bad_input.refusals import check_refusal

LONG = "x" * 300

MISTAKES = {
    "watch": (
        "/purgatory/watch/k?wait=soon&limit=0&min=ten&colour=red&wait=5",
        {"Prefer": "wait=nan", "Wait-Id": "1", "If-None-Match": "x"},
        ["Wait-Id", "colour", "wait", "limit", "min", "wait", "If-None-Match", "Prefer: wait"],
    ),
    "watch, a bad key": (f"/purgatory/watch/{LONG}?min=0", {}, ["key", "min"]),
    "watch, no cursor besides": ("/purgatory/watch/k?cursor=&limit=0&min=0", {}, ["limit", "min"]),
    "list": ("/purgatory/keys?limit=no&prefix=%01&x=1", {}, ["x", "limit", "prefix"]),
    "another": ("/purgatory/statistics?a=1&b=2", {}, ["a", "b"]),
}


@pytest.mark.parametrize(("target", "headers", "params"), MISTAKES.values(), ids=MISTAKES.keys())
async def test_all_of_them_are_told(
    connection: Connection, target: str, headers: dict[str, str], params: list[str]
) -> None:
    """Each with its name, what is wrong with it, and what it may be; the first one in `detail`."""
    reply = await connection.request("GET", target, headers=headers)
    document = check_refusal(reply, 422, "bad-parameter")
    errors = document["errors"]
    assert sorted(error["param"] for error in errors) == sorted(params)
    assert all(error["detail"].endswith(error["allowed"]) for error in errors)
    assert (document["param"], document["detail"]) == (errors[0]["param"], errors[0]["detail"])


async def test_one_alone_is_told_alone(connection: Connection) -> None:
    """There is no list of one."""
    document = check_refusal(
        await connection.get("/purgatory/watch/k?min=0"), 422, "bad-parameter", "1 to 1000"
    )
    assert "errors" not in document


async def test_a_wait_in_a_body(connection: Connection) -> None:
    """It is one of the mistakes of the body; and the headers have theirs."""
    body = {"keys": {"k": None}, "wait": "soon", "limit": 0}
    reply = await connection.request("POST", "/purgatory/watch", body)
    errors = check_refusal(reply, 422, "bad-parameter", "500ms")["errors"]
    assert sorted(error["pointer"] for error in errors) == ["/limit", "/wait"]
    headers = {"Prefer": "wait=nan", "Wait-Id": "1"}
    reply = await connection.request("POST", "/purgatory/watch", {"keys": {"k": None}}, headers)
    errors = check_refusal(reply, 422, "bad-parameter")["errors"]
    assert sorted(error["param"] for error in errors) == ["Prefer: wait", "Wait-Id"]


async def test_headers_given_twice_are_among_them(connection: Connection) -> None:
    """Each is called as it is in the documentation."""
    lines = "".join(f"{name}: x\r\n" * 2 for name in ("wait-id", "if-none-match"))
    connection.write(f"GET /purgatory/watch/k HTTP/1.1\r\nHost: h\r\n{lines}\r\n".encode())
    errors = check_refusal(await connection.reply(), 422, "bad-parameter")["errors"]
    assert sorted(error["param"] for error in errors) == ["If-None-Match", "Wait-Id"]
