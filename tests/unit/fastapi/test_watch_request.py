"""What a client asks for when it watches."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.fastapi import BearerTokens
from purgatory.fastapi.http.requests import RawRequest
from purgatory.fastapi.http.responses import Problem
from purgatory.fastapi.watch.request_parser import WatchParser, WatchRequest
from purgatory.fastapi.watch.routes import StreamParser
from purgatory.fastapi.watch.settings import WaitSettings
from tests.cases import cases

PARSER = WatchParser(Purgatory(), WaitSettings())


def _parsed(path: str) -> WatchRequest:
    # A string of its own, as each request has it.
    key = path[len("/watch/") :]
    raw = RawRequest(path, path.encode(), b"wait=2", [], key)
    return PARSER.parse(raw)


def test_those_who_wait_for_the_same_share_it() -> None:
    """There are as many of them as clients: each keeps no key, position or terms of its own."""
    first, second = _parsed("/watch/order:42"), _parsed("/watch/order:42")
    assert first == second
    assert first.keys is second.keys and first.positions is second.positions
    assert first.terms is second.terms


def test_what_long_requests_say_is_not_kept() -> None:
    """A client cannot fill the memory with headers that nobody sends again."""
    parser = WatchParser(Purgatory(), WaitSettings())
    tracemalloc.start()
    try:
        for number in range(200):
            etag = b'"%02000d"' % number
            raw = RawRequest("/watch/k", b"/watch/k", b"cursor=0", [(b"if-none-match", etag)], "k")
            assert parser.parse(raw).positions == (0,)
        del raw, etag
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100_000


def test_a_key_that_is_none_is_refused_each_time() -> None:
    """Only what is good is remembered."""
    for _ in range(2):
        with pytest.raises(Problem) as refusal:
            _parsed("/watch/order\n42")
        assert refusal.value.kind.slug == "bad-parameter"


async def test_bad_and_expired_cursors_together() -> None:
    """Each invalid one is named with its place; an expired one is reported once they are mended."""
    async with Purgatory() as purgatory:
        expired = purgatory.signals.cursor(0)
        await purgatory.cancel("dropped")
        parser = WatchParser(purgatory, WaitSettings())
        document = {"keys": {"bad": "nonsense", "dropped": expired, "worse": "none"}}
        raw = RawRequest("/watch", b"/watch", b"", [], body=json.dumps(document).encode())
        with pytest.raises(Problem) as refusal:
            parser.parse_several(raw)
        assert refusal.value.kind.slug == "bad-cursor"
        errors = refusal.value.members["errors"]
        assert [error["pointer"] for error in errors] == ["/keys/bad", "/keys/worse"]


@cases("is_one", [True, False])
async def test_a_stream_that_is_not_allowed_is_refused_whatever_is_wrong_with_it(
    *, is_one: bool
) -> None:
    """The same for each cursor and parameter: which of them is valid says something of the key."""
    tokens = BearerTokens.from_text(
        "token-of-another-key wait:other; token-of-the-key wait:other wait:k*"
    )
    async with Purgatory() as purgatory:
        parser = StreamParser(purgatory, WaitSettings())

        def slug(key: str, query: str, token: str) -> str:
            headers = [(b"authorization", f"Bearer {token}".encode())]
            if is_one:
                path = f"/watch/{key}"
                raw = RawRequest(path, path.encode(), query.encode(), headers, key)
            else:
                query = f"key=other&key={key}&{query}"
                raw = RawRequest("/watch", b"/watch", query.encode(), headers)
            raw.permit = tokens(raw)
            try:
                request = parser.parse(raw) if is_one else parser.parse_several(raw)
            except Problem as problem:
                return problem.kind.slug
            return "none" if request is None else "stream"

        asked = {
            ("k", ""): "stream",
            ("k", "cursor=nonsense"): "bad-cursor",
            ("k", "cursor=end"): "none",
            ("k", "wait=x&unknown=1"): "bad-parameter",
            ("k\0" if is_one else "k%00", ""): "bad-parameter",
        }
        for (key, query), allowed in asked.items():
            assert slug(key, query, "token-of-the-key") == allowed
            assert slug(key, query, "token-of-another-key") == "forbidden"


def test_settings_that_make_no_sense() -> None:
    """The error names the setting."""
    cases: list[dict[str, Any]] = [
        {"default_wait": 2, "max_wait": 1},
        {"default_wait": -1},
        {"default_wait": float("nan")},
        {"max_parked_per_client": 0},
        {"request_timeout": 0},
        {"request_timeout": float("nan")},
        {"max_incomplete_bytes": 0},
        {"max_response_bytes": 0},
        {"max_unread_bytes": 0},
        {"response_timeout": 0},
        {"response_timeout": float("inf")},
        {"heartbeat": float("inf")},
    ]
    for options in cases:
        with pytest.raises(ValueError, match=next(iter(options))):
            WaitSettings(**options)
        assert WaitSettings(max_parked_per_client=1, default_wait=1, max_wait=1).max_wait == 1
