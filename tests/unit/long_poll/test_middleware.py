"""LongPollMiddleware: any GET as a long poll, in virtual time, and what it leaves as it is."""

import asyncio
import logging

import pytest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from purgatory import Purgatory
from purgatory.fastapi import LongPollMiddleware, WaitSettings
from tests.needs import ROUTE_IN_SCOPE
from tests.unit.exchange import Exchange, ask
from tests.unit.long_poll.order import (
    Bench,
    Order,
    application,
    check_not_modified,
    poll,
    until_parked,
)

# What is parked, and how it ends.


async def test_a_key_that_fires_in_vain_parks_again(bench: Bench) -> None:
    """The deadline stays what it was."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    request = bench.begin(4)
    for calls in range(1, 4):
        await until_parked(bench.purgatory)
        assert bench.order.calls == calls
        await asyncio.sleep(1)
        await bench.purgatory.fire("order:42")
    check_not_modified(await request.reply(), "4")
    assert loop.time() - started == pytest.approx(4, abs=0.002)
    assert bench.order.calls == 4


async def test_a_long_wait_is_shortened_a_little_and_differently(bench: Bench) -> None:
    """Within 0.9 to 1, so that polls do not return in step."""
    loop = asyncio.get_running_loop()
    took = []
    for _ in range(20):
        started = loop.time()
        check_not_modified(await bench.begin(10).reply(), "10")
        took.append(loop.time() - started)
    assert 9 <= min(took) < max(took) <= 10
    assert len(set(took)) > 10


@pytest.mark.parametrize(("asked", "applied"), [("3600", "7"), ("10m", "7"), ("7", "7")])
async def test_a_wait_is_clamped(
    purgatory: Purgatory, order: Order, asked: str, applied: str
) -> None:
    """To the settings' maximum, and the answer says so."""
    settings = WaitSettings(default_wait=1, max_wait=7)
    app = LongPollMiddleware(application(order.show), purgatory=purgatory, settings=settings)
    loop = asyncio.get_running_loop()
    started = loop.time()
    check_not_modified(await poll(asked).begin(app).reply(), applied)
    assert 6.3 <= loop.time() - started <= 7


async def test_an_answer_that_leaves_success_ends_the_wait(bench: Bench) -> None:
    """The order is gone: 404 is no ETag that the client has, whatever its headers."""
    request = await bench.parked()

    def gone() -> Response:
        return JSONResponse({}, 404, headers={"ETag": '"1"', "Long-Poll-Key": "order:42"})

    bench.order.make = gone
    await bench.purgatory.fire("order:42")
    reply = await request.reply()
    assert (reply.status, reply.headers["preference-applied"]) == (404, "wait=20")
    assert "long-poll-key" not in reply.headers


async def test_several_keys_and_several_headers(bench: Bench) -> None:
    """Separated by commas, or each in a header of its own; each of them wakes."""
    bench.order.headers = {}

    def respond() -> Response:
        response = Response(headers={"ETag": '"1"', "Long-Poll-Key": " a,b , ,a"})
        response.raw_headers.append((b"long-poll-key", b"c"))
        return response

    bench.order.make = respond
    request = bench.begin()
    for calls, key in enumerate("abc", 2):
        await until_parked(bench.purgatory)
        assert bench.purgatory.watched_keys() == {"a": 1, "b": 1, "c": 1}
        await bench.purgatory.fire(key)
        await until_parked(bench.purgatory)
        assert bench.order.calls == calls
    request.leave()
    await request.end()


async def test_the_keys_are_those_of_the_latest_answer(bench: Bench) -> None:
    """An answer may come to depend on something else."""
    request = await bench.parked()
    bench.order.headers = {"Long-Poll-Key": "order:42:paid"}
    await bench.purgatory.fire("order:42")
    await until_parked(bench.purgatory)
    assert bench.purgatory.watched_keys() == {"order:42:paid": 1}
    bench.order.version = 2
    await bench.purgatory.fire("order:42:paid")
    assert (await request.reply()).status == 200


# What counts as the same.


@pytest.mark.parametrize(
    ("asked", "etag"),
    [
        ('W/"1"', '"1"'),
        (' ,, "0" ,\t"1"', '"1"'),
        ("*", '"1"'),
        ("1", '"1"'),
    ],
)
async def test_tags_are_compared_weakly(bench: Bench, asked: str, etag: str) -> None:
    """Lists and the star, as RFC 9110 has them, and one tag without its quotes."""
    bench.order.headers["ETag"] = etag
    bench.order.make = lambda: Response("x", headers=bench.order.headers)
    check_not_modified(await bench.begin(1, asked).reply(), "1", etag)


async def test_an_endpoint_that_answers_304_itself(bench: Bench) -> None:
    """It has compared already: that counts as the same, with its headers."""
    headers = {"ETag": '"1"', "Long-Poll-Key": "order:42", "X-By": "endpoint"}
    bench.order.make = lambda: Response(status_code=304, headers=headers)
    reply = await bench.begin(1).reply()
    check_not_modified(reply, "1")
    assert reply.headers["x-by"] == "endpoint"
    request = await bench.parked()
    bench.order.make = None
    bench.order.version = 2
    await bench.purgatory.fire("order:42")
    assert (await request.reply()).json() == {"version": 2}


async def test_the_304_keeps_what_is_not_about_the_body(bench: Bench) -> None:
    """What guides caches, as RFC 9110 asks (15.4.5), and what browsers need to read it."""
    kept = {
        "Cache-Control": "private, max-age=3",
        "Content-Location": "/orders/42.json",
        "Date": "Sat, 21 Nov 2026 10:00:00 GMT",
        "Expires": "Sat, 21 Nov 2026 10:00:03 GMT",
        "Vary": "Accept, Cookie",
        "Access-Control-Allow-Origin": "https://shop.example",
        "Content-Security-Policy": "default-src 'none'",
        "Set-Cookie": "seen=1",
    }
    dropped = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": "inline",
        "Content-Encoding": "identity",
        "Content-Language": "en",
        "Last-Modified": "Sat, 21 Nov 2026 10:00:00 GMT",
        "Transfer-Encoding": "chunked",
    }
    bench.order.headers |= kept | dropped
    reply = await bench.begin(1).reply()
    check_not_modified(reply, "1")
    assert {name.lower(): value for name, value in kept.items()}.items() <= reply.headers.items()
    assert not {name.lower() for name in [*dropped, "Content-Type"]} & set(reply.headers)


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
async def test_requests_that_do_not_ask_for_it(bench: Bench, headers: dict[str, str]) -> None:
    """Answered at once, and a preference that makes no sense is ignored (RFC 7240)."""
    reply = await ask(bench.app, "/orders/42", headers)
    assert (reply.status, reply.json(), bench.order.calls) == (200, {"version": 1}, 1)
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
    bench: Bench, caplog: pytest.LogCaptureFixture, headers: dict[str, str], reason: str
) -> None:
    """It is answered at once, and the log says what it lacks, one time for each route."""
    bench.order.make = lambda: JSONResponse({"version": 1}, headers=headers)
    with caplog.at_level(logging.WARNING, "purgatory.fastapi"):
        for _ in range(3):
            reply = await bench.begin(20, '"1", "0"').reply()
            assert (reply.status, reply.json()) == (200, {"version": 1})
            assert "long-poll-key" not in reply.headers
    [record] = caplog.records
    assert reason in record.getMessage()
    assert "/orders/{order_id}" in record.getMessage()
