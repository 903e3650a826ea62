"""Waits, limits, cursors and headers that make no sense."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.acceptance.client import Connection
from tests.acceptance.thread_server import ThreadServer
from tests.bad_input.refusals import check_refusal

WATCH = "/purgatory/watch/k"

WAITS = {
    "not a number": "nan",
    "NaN": "NaN",
    "infinite": "inf",
    "infinity": "Infinity",
    "minus infinity": "-inf",
    "overflow": "1e400",
    "exponent": "1e1",
    "negative": "-1",
    "nearly zero": "-0.001",
    "plus": "+5",
    "hexadecimal": "0x10",
    "fullwidth digits": "２５",  # noqa: RUF001 - digits to Python, but not to us
    "arabic digits": "٢٥",
    "empty": "",
    "space": " ",
    "padded": " 25",
    "newline": "25\n",
    "hours": "25h",
    "minutes and seconds": "1m1s",
    "underscore": "1_0",
    "comma": "2,5",
    "no digits": ".",
    "two points": "2.5.1",
    "boolean": "true",
    "list": "[25]",
    "null": "null",
    "null character": "25\0",
    "huge": "99999999999999999999",
    "long": "9" * 3000,
    "markup": "<script>",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
async def test_a_wait_that_is_none(connection: Connection, wait: str) -> None:
    """422 names the parameter and the value, and says how a wait is written."""
    reply = await connection.get(f"{WATCH}?wait={quote(wait)}")
    document = check_refusal(reply, 422, "bad-parameter", repr(wait[:60])[1:-1], "25", "500ms")
    assert document["param"] == "wait"


@pytest.mark.parametrize("wait", ["nan", "-1", "inf", "25h", '""', "", '"25', "1e9"])
async def test_a_preference_for_a_wait_that_is_none(connection: Connection, wait: str) -> None:
    """In Prefer it is refused as in the query."""
    reply = await connection.get(WATCH, prefer=f"wait={wait}")
    assert check_refusal(reply, 422, "bad-parameter", "500ms")["param"] == "Prefer: wait"


NUMBERS = ["0", "-1", "1001", "99999", "1.5", "1e2", "ten", "", "٣", "9" * 3000, "0x1", "1_0"]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: value[:8] or "empty")
@pytest.mark.parametrize("name", ["limit", "min"])
async def test_numbers_out_of_bounds(connection: Connection, name: str, value: str) -> None:
    """422 names the parameter, the value and the bounds."""
    reply = await connection.get(f"{WATCH}?wait=0&{name}={quote(value)}")
    document = check_refusal(reply, 422, "bad-parameter", value[:60], "1 to 1000")
    assert document["param"] == name


@pytest.mark.parametrize("value", ["0", "1001", "x", ""], ids=repr)
async def test_a_limit_of_the_list(connection: Connection, value: str) -> None:
    """The list of keys has the same bounds."""
    reply = await connection.get(f"/purgatory/keys?limit={value}")
    check_refusal(reply, 422, "bad-parameter", "1 to 1000")


CURSORS = {
    "text": "x",
    "two zeros": "00",
    "negative": "-1",
    "no epoch": "-5",
    "no offset": "0123456789ab-",
    "wrong alphabet": "g123456789ab-5",
    "upper case": "0123456789AB-5",
    "float": "0123456789ab-1.5",
    "many digits": "0123456789ab-" + "9" * 19,
    "other digits": "0123456789ab-٣",
    "padded": " 0",
    "null": "null",
    "quoted": '"0"',
    "long": "0" * 3000,
    "empty": "",
    "null character": "0\0",
}


@pytest.mark.parametrize("cursor", CURSORS.values(), ids=CURSORS.keys())
async def test_a_cursor_that_is_none_of_ours(connection: Connection, cursor: str) -> None:
    """400 says which cursors there are."""
    reply = await connection.get(f"{WATCH}?cursor={quote(cursor)}")
    check_refusal(reply, 400, "bad-cursor")


@pytest.mark.parametrize("offset", [1, 2**31, 2**63 - 1, 10**18 - 1])
async def test_a_cursor_from_the_future(connection: Connection, offset: int) -> None:
    """400: it is ahead of every signal, so it cannot have come from an answer."""
    epoch, _, head = (await connection.get(f"{WATCH}?wait=0")).cursor.partition("-")
    reply = await connection.get(f"{WATCH}?cursor={epoch}-{int(head) + offset}")
    check_refusal(reply, 400, "bad-cursor")


async def test_a_cursor_of_another_epoch(connection: Connection) -> None:
    """410 tells the cursors from which to go on, and never hangs."""
    reply = await connection.get(f"{WATCH}?cursor=0123456789ab-1")
    document = check_refusal(reply, 410, "cursor-expired")
    for name in ("earliest", "head"):
        assert (await connection.get(f"{WATCH}?wait=0&cursor={document[name]}")).status == 200


ETAGS = {
    "star": ("*", 422),
    "bare": ("0", 422),
    "two": ('"0", "1"', 422),
    "half": ('"0', 422),
    "weak nothing": ("W/", 422),
    "quote": ('"', 422),
    "empty": ('""', 400),
    "blank": ("", 422),
    "not ours": ('"x"', 400),
    "latin": ('"é"', 400),
}


@pytest.mark.parametrize(("etag", "status"), ETAGS.values(), ids=ETAGS.keys())
async def test_an_if_none_match_that_is_no_cursor(
    connection: Connection, etag: str, status: int
) -> None:
    """It is refused, rather than taken for a wait from now on."""
    reply = await connection.get(f"{WATCH}?wait=0", if_none_match=etag)
    slug = "bad-parameter" if status == 422 else "bad-cursor"
    assert check_refusal(reply, status, slug, "If-None-Match")["param"] == "If-None-Match"


@pytest.mark.parametrize("etag", ['"x"', '""', '"é"'])
async def test_an_if_match_that_is_no_cursor(connection: Connection, etag: str) -> None:
    """The refusal names the header, not a parameter that was not given."""
    reply = await connection.request("POST", "/purgatory/keys/k", {}, {"If-Match": etag})
    assert check_refusal(reply, 400, "bad-cursor", "If-Match")["param"] == "If-Match"


@pytest.mark.parametrize(
    ("method", "target", "name"),
    [
        ("GET", f"{WATCH}?wait=0&wait=0", "wait"),
        ("GET", f"{WATCH}?cursor=0&cursor=0", "cursor"),
        ("GET", f"{WATCH}?limit=1&min=1&limit=2", "limit"),
        ("GET", f"{WATCH}?wait=0&%77ait=1", "wait"),
        ("GET", "/purgatory/keys?prefix=a&prefix=b", "prefix"),
        ("GET", f"{WATCH}?timeout=5", "timeout"),
        ("GET", f"{WATCH}?WAIT=5", "WAIT"),
        ("GET", f"{WATCH}?=5", ""),
        ("GET", "/purgatory/keys/k?wait=5", "wait"),
        ("GET", "/purgatory/statistics?key=k", "key"),
        ("GET", "/purgatory/problems/full?x=1", "x"),
        ("POST", "/purgatory/keys/k?value=5", "value"),
        ("POST", "/purgatory/keys?key=k", "key"),
        ("POST", "/purgatory/watch?wait=5", "wait"),
        ("DELETE", "/purgatory/keys/k?force=1", "force"),
        ("DELETE", "/purgatory/waits/0b1d6c5e-7d0c-4a53-9b0e-2d1c9f0a1b2c?a=1", "a"),
    ],
)
async def test_parameters_unknown_or_given_twice(
    server: ThreadServer, connection: Connection, method: str, target: str, name: str
) -> None:
    """422 names the parameter; nothing is done."""
    before = server.purgatory.statistics().signals
    reply = await connection.request(method, target, headers={"Content-Length": "0"})
    check_refusal(reply, 422, "bad-parameter", name)
    assert server.purgatory.statistics().signals == before


@pytest.mark.parametrize("prefix", ["a%01", "x" * 257])
async def test_a_prefix_that_no_key_has(connection: Connection, prefix: str) -> None:
    """It is refused, rather than answered with no keys."""
    reply = await connection.get(f"/purgatory/keys?prefix={prefix}")
    assert check_refusal(reply, 422, "bad-parameter")["param"] == "prefix"


@pytest.mark.parametrize(
    "query",
    [
        "wait",
        "&",
        "wait=0&",
        "wait=0&&limit=1",
        "wait=%ff",
        "cursor=%ED%A0%80",
        "%ff=0",
        "wait=%C3",
        "&".join(f"p{number}=1" for number in range(100)),
        "cursor=" + "0" * 5000,
    ],
    ids=lambda query: query[:12],
)
async def test_a_query_that_cannot_be_read(connection: Connection, query: str) -> None:
    """422 says how a query is written, and how long it may be."""
    check_refusal(await connection.get(f"{WATCH}?{query}"), 422, "bad-parameter")


@pytest.mark.parametrize("name", ["Wait-Id", "If-None-Match"])
async def test_headers_given_twice(connection: Connection, name: str) -> None:
    """422 names the header: there is no telling which of the two was meant."""
    line = f"{name}: 0b1d6c5e-7d0c-4a53-9b0e-2d1c9f0a1b2c\r\n"
    connection.write(f"GET {WATCH} HTTP/1.1\r\nHost: h\r\n{line}{line}\r\n".encode())
    check_refusal(await connection.reply(), 422, "bad-parameter", name, "twice")


WAIT_IDS = ["1", "x" * 36, "0b1d6c5e-7d0c-4a53-9b0e-2d1c9f0a1b2", "", "é" * 32, "9" * 3000]
# What int() takes for 32 hexadecimal digits.
WAIT_IDS += ["+" + 31 * "0", 15 * "0_" + "00", f"{{{WAIT_IDS[2]}c", f"-{WAIT_IDS[2]}c"]
# What `uuid.UUID` does not know as a URN.
WAIT_IDS += [f"URN:UUID:{WAIT_IDS[2]}c"]


@pytest.mark.parametrize("wait_id", WAIT_IDS, ids=lambda wait_id: wait_id[:8] or "empty")
async def test_a_wait_id_that_is_no_uuid(connection: Connection, wait_id: str) -> None:
    """422 names the header, the value and what it may be; so does ending such a wait."""
    for reply in (
        await connection.get(WATCH, wait_id=wait_id),
        await connection.request(
            "POST", "/purgatory/watch", {"keys": {"k": None}}, {"Wait-Id": wait_id}
        ),
    ):
        document = check_refusal(reply, 422, "bad-parameter", "Wait-Id", "UUID", wait_id[:30])
        assert document["param"] == "Wait-Id"
    if wait_id:
        reply = await connection.request("DELETE", f"/purgatory/waits/{quote(wait_id)}")
        check_refusal(reply, 422, "bad-parameter", "UUID")


METHODS = {
    "/purgatory/watch/k": {"GET"},
    "/purgatory/watch": {"GET", "POST"},
    "/purgatory/keys/k": {"GET", "POST", "DELETE"},
    "/purgatory/keys": {"GET", "POST"},
    "/purgatory/waits/0b1d6c5e-7d0c-4a53-9b0e-2d1c9f0a1b2c": {"DELETE"},
    "/purgatory/statistics": {"GET"},
    "/purgatory/problems/full": {"GET"},
}


@pytest.mark.parametrize("target", METHODS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
async def test_a_method_that_an_address_does_not_take(
    connection: Connection, method: str, target: str
) -> None:
    """405 with every method that it does take in the Allow header."""
    if method in METHODS[target]:
        return
    reply = await connection.request(method, target, headers={"Content-Length": "0"})
    assert reply.status == 405
    assert set(reply.headers["allow"].split(", ")) == METHODS[target]
    if method != "HEAD":
        check_refusal(reply, 405, "method-not-allowed", method, *METHODS[target])


@pytest.mark.parametrize("target", ["/purgatory", "/purgatory/nothing", "/purgatory/wait"])
async def test_an_address_that_is_not_there(connection: Connection, target: str) -> None:
    """404 as problem details, that names the address."""
    reply = await connection.get(target)
    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")
    assert target in reply.json()["detail"]
    assert reply.json()["type"] == "/purgatory/problems/not-found"


async def test_a_problem_that_is_not_there(connection: Connection) -> None:
    """404 names the kind that was asked for."""
    check_refusal(await connection.get("/purgatory/problems/x"), 404, "not-found", "'x'")
