"""Keys that are none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.client import Connection
from tests.acceptance.thread_server import ThreadServer
from tests.bad_input.refusals import check_refusal

PLACES = [
    ("GET", "/purgatory/watch/"),
    ("GET", "/purgatory/keys/"),
    ("POST", "/purgatory/keys/"),
    ("DELETE", "/purgatory/keys/"),
]

KEYS_IN_PATHS = {
    "empty": "",
    "257 characters": "x" * 257,
    "300 characters": "x" * 300,
    "300 wide characters": "%E2%98%82" * 300,
    "null": "%00",
    "newline": "a%0Ab",
    "newline at the end": "a%0A",
    "delete": "%7F",
    "next line": "%C2%85",
    "escape": "a%1B%5B31m",
    "not UTF-8": "%FF",
    "half a character": "a%C3",
    "overlong": "%C0%AF",
    "surrogate": "%ED%A0%80",
    "beyond Unicode": "%F4%90%80%80",
    "8,000 characters": "x" * 8000,
}


@pytest.mark.parametrize(("method", "place"), PLACES)
@pytest.mark.parametrize("key", KEYS_IN_PATHS.values(), ids=KEYS_IN_PATHS.keys())
async def test_a_key_in_the_path(
    server: ThreadServer, connection: Connection, method: str, place: str, key: str
) -> None:
    """422 says what is wrong with it, and nothing is kept of it."""
    before = server.purgatory.signals.statistics()
    reply = await connection.request(method, place + key, headers={"Content-Length": "0"})
    assert check_refusal(reply, 422, "bad-parameter")["param"] == "key"
    assert server.purgatory.signals.statistics() == before


KEYS_IN_JSON = {
    "empty": "",
    "300 characters": "x" * 300,
    "null": "\0",
    "newline": "a\nb",
    "next line": "\x85",
}


def _bodies(key: str) -> list[tuple[str, Any]]:
    return [
        ("/purgatory/watch", {"keys": {key: None}, "wait": 0}),
        ("/purgatory/watch", {"keys": {"good": None, key: "0"}, "wait": 0}),
        ("/purgatory/keys", [{"key": "good"}, {"key": key}]),
    ]


@pytest.mark.parametrize("key", KEYS_IN_JSON.values(), ids=KEYS_IN_JSON.keys())
async def test_a_key_in_a_body(server: ThreadServer, connection: Connection, key: str) -> None:
    """422, and the good ones beside it are not fired."""
    before = server.purgatory.signals.statistics()
    for target, body in _bodies(key):
        reply = await connection.request("POST", target, body)
        check_refusal(reply, 422, "bad-parameter")
    assert server.purgatory.signals.statistics() == before


@pytest.mark.parametrize("escape", ["\\ud800", "\\udc00", "\\ud83d\\ud83d", "\\ud83dx"])
async def test_a_lone_surrogate_in_a_body(connection: Connection, escape: str) -> None:
    """400: it is no text that UTF-8 could hold."""
    for target, body in (
        ("/purgatory/watch", f'{{"keys": {{"{escape}": null}}, "wait": 0}}'),
        ("/purgatory/keys", f'[{{"key": "{escape}"}}]'),
        ("/purgatory/keys/k", f'{{"value": "{escape}"}}'),
        ("/purgatory/keys/k", f'{{"value": {{"{escape}": 1}}}}'),
    ):
        head = f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.write((head + body).encode())
        check_refusal(await connection.reply(), 400, "bad-json")


async def test_what_is_wrong_with_a_key_is_said(connection: Connection) -> None:
    """The sentence names the length, or the character, and the limit."""
    for key, *words in (
        ("x" * 300, "1 to 256", "300"),
        ("a%00", "\\x00", "control"),
        ("%FF", "UTF-8"),
    ):
        reply = await connection.get(f"/purgatory/watch/{key}")
        check_refusal(reply, 422, "bad-parameter", *words)
