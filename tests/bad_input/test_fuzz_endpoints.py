"""Whatever is asked of the endpoints, no answer is a 500 and every refusal is problem details."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from purgatory import Limits, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, WaitSettings, install

keys = st.one_of(
    st.sampled_from(["", "k", "a/b", "a%2Fb", "%00", "%FF", "%0A", "%ED%A0%80", "x" * 300]),
    st.text(st.characters(codec="utf-8"), max_size=9).map(quote),
)
paths = st.one_of(
    st.sampled_from(["watch", "keys", "statistics", "problems/full", "problems/x", "", "waits/1"]),
    st.builds("{}/{}".format, st.sampled_from(["watch", "keys", "waits", "problems"]), keys),
)
parameters = st.lists(
    st.tuples(
        st.sampled_from(["cursor", "wait", "limit", "min", "prefix", "x", ""]),
        st.one_of(
            st.sampled_from(["0", "1", "nan", "-1", "1001", "500ms", ""]), st.text(max_size=9)
        ),
    ),
    max_size=4,
)
HEADERS = [
    "Prefer",
    "If-None-Match",
    "If-Match",
    "Idempotency-Key",
    "Authorization",
    "Wait-Id",
    "Content-Type",
    "Accept",
]
header_values = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=20)
headers = st.lists(
    st.tuples(
        st.sampled_from(HEADERS),
        st.one_of(
            st.sampled_from(["wait=0", "wait=nan", '"0"', "0b1d6c5e7d0c4a539b0e2d1c9f0a1b2c"]),
            header_values,
        ),
    ),
    max_size=4,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda children: st.lists(children) | st.dictionaries(st.text(max_size=9), children),
    max_leaves=9,
)
bodies = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    json_values.map(lambda value: json.dumps(value).encode()),
    json_values.map(lambda value: json.dumps({"value": value}).encode()),
    json_values.map(lambda value: json.dumps([{"key": "k", "value": value}]).encode()),
    st.dictionaries(st.text(max_size=9), st.none() | st.just("0")).map(
        lambda keys: json.dumps({"keys": keys, "wait": 0}).encode()
    ),
)
methods = st.sampled_from(["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "BREW"])


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application whose waits are short, and whose history is small."""
    limits = Limits(max_signals_per_key=3, max_signals=10, max_value_bytes=100)
    purgatory, app = Purgatory(limits=limits), FastAPI()
    install(
        app,
        purgatory,
        settings=WaitSettings(default_wait=0.0, max_wait=0.001),
        authorize=ALLOW_ANYONE,
    )
    transport = httpx.ASGITransport(app)
    async with purgatory, httpx.AsyncClient(transport=transport, base_url="http://h") as opened:
        yield opened
        assert purgatory.parked == 0
        assert purgatory.watched_keys() == {}


@given(methods, paths, parameters, headers, bodies)
# The client is made once for all examples: what one leaves behind is part of the next.
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_answer_is_a_500(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    parameters: Any,
    headers: list[tuple[str, str]],
    body: bytes,
) -> None:
    """Any method, address, query, headers and body."""
    encoded = [(name, value.encode("latin-1", "replace")) for name, value in headers]
    answer: Any = await client.request(
        method,
        f"http://h/purgatory/{path}",
        params=parameters or None,
        headers=[(name.encode(), value) for name, value in encoded],
        content=body,
    )
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400 and method != "HEAD":
        assert answer.headers["content-type"] == "application/problem+json"
        document = answer.json()
        assert document["status"] == answer.status_code
        assert document["title"] and document["detail"] and document["type"]
