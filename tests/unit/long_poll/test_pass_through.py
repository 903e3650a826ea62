"""Requests that LongPollMiddleware leaves as they are."""

import logging

import pytest
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory import Purgatory
from purgatory.fastapi import LongPollMiddleware
from tests.needs import ROUTE_IN_SCOPE
from tests.unit.exchange import Exchange, ask
from tests.unit.long_poll.order import Order, poll


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"If-None-Match": '"1"'},
        {"Prefer": "wait=20"},
        {"If-None-Match": '"1"', "Prefer": "return=minimal"},
        {"If-None-Match": '"1"', "Prefer": "wait=soon"},
        {"If-None-Match": '"1"', "Prefer": "wait=-1"},
        {"If-None-Match": '"1"', "Prefer": "wait=nan"},
        {"If-None-Match": '"1"', "Prefer": "wait=inf"},
        {"If-None-Match": '"1"', "Prefer": "wait"},
    ],
)
async def test_requests_that_do_not_ask_for_it(
    app: ASGIApp, order: Order, headers: dict[str, str]
) -> None:
    """Answered at once, and a preference that makes no sense is ignored (RFC 7240)."""
    reply = await ask(app, "/orders/42", headers)
    assert (reply.status, reply.json(), order.calls) == (200, {"version": 1}, 1)
    assert "long-poll-key" not in reply.headers
    assert "preference-applied" not in reply.headers


async def test_what_is_not_asked_for_gets_the_very_same_scope_and_receive(
    purgatory: Purgatory,
) -> None:
    """Nothing of it is wrapped or copied."""
    seen: list[object] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend((scope, receive))
        await Response()(scope, receive, send)

    app = LongPollMiddleware(inner, purgatory=purgatory)
    request = Exchange("/")
    await request.begin(app).reply()
    assert seen[0] is request.scope
    assert seen[1] == request.receive


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"ETag": '"1"'}, "names no key"),
        ({"ETag": '"1"', "Long-Poll-Key": " , "}, "names no key"),
        ({"Long-Poll-Key": "k"}, "no ETag"),
        ({"ETag": "1", "Long-Poll-Key": "k"}, "no ETag"),
        ({"ETag": '"1"', "Long-Poll-Key": "k" * 300}, "cannot be watched"),
        ({"ETag": '"1"', "Long-Poll-Key": ",".join(map(str, range(200)))}, "cannot be watched"),
    ],
    ids=["neither", "empty", "no tag", "unquoted tag", "long key", "many keys"],
)
@ROUTE_IN_SCOPE
async def test_an_endpoint_without_etag_or_key_is_mentioned_once(
    app: ASGIApp,
    order: Order,
    caplog: pytest.LogCaptureFixture,
    headers: dict[str, str],
    reason: str,
) -> None:
    """It is answered at once, and the log says what it lacks, one time for each route."""
    order.make = lambda: JSONResponse({"version": 1}, headers=headers)
    with caplog.at_level(logging.WARNING, "purgatory.fastapi"):
        for _ in range(3):
            reply = await poll(20, '"1", "0"').begin(app).reply()
            assert (reply.status, reply.json()) == (200, {"version": 1})
            assert "long-poll-key" not in reply.headers
    [record] = caplog.records
    assert reason in record.getMessage()
    assert "/orders/{order_id}" in record.getMessage()
