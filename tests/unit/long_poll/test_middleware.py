"""LongPollMiddleware: any GET as a long poll, in virtual time."""

import asyncio

import pytest
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from purgatory import Purgatory
from purgatory.fastapi import LongPollMiddleware, WaitSettings
from tests.unit.long_poll.order import Order, application, check_not_modified, poll, until_parked

# What is parked, and how it ends.


async def test_the_same_etag_parks_until_the_key_fires(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """Then the endpoint is called again, and its new answer is the answer."""
    request = poll().begin(app)
    await until_parked(purgatory)
    assert purgatory.watched_keys() == {"order:42": 1}
    order.version = 2
    assert (await purgatory.fire("order:42")).completed == 1
    reply = await request.reply()
    assert (reply.status, reply.json(), order.calls) == (200, {"version": 2}, 2)
    assert reply.headers["etag"] == '"2"'
    assert reply.headers["preference-applied"] == "wait=20"
    assert "long-poll-key" not in reply.headers


async def test_a_key_that_fires_in_vain_parks_again(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """The deadline stays what it was."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    request = poll(4).begin(app)
    for calls in range(1, 4):
        await until_parked(purgatory)
        assert order.calls == calls
        await asyncio.sleep(1)
        await purgatory.fire("order:42")
    check_not_modified(await request.reply(), "4")
    assert loop.time() - started == pytest.approx(4, abs=0.002)
    assert order.calls == 4


async def test_a_long_wait_is_shortened_a_little_and_differently(app: ASGIApp) -> None:
    """Within 0.9 to 1, so that polls do not return in step."""
    loop = asyncio.get_running_loop()
    took = []
    for _ in range(20):
        started = loop.time()
        check_not_modified(await poll(10).begin(app).reply(), "10")
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


async def test_an_answer_that_leaves_success_ends_the_wait(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """The order is gone: 404 is no ETag that the client has, whatever its headers."""
    request = poll().begin(app)
    await until_parked(purgatory)

    def gone() -> Response:
        return JSONResponse({}, 404, headers={"ETag": '"1"', "Long-Poll-Key": "order:42"})

    order.make = gone
    await purgatory.fire("order:42")
    reply = await request.reply()
    assert (reply.status, reply.headers["preference-applied"]) == (404, "wait=20")
    assert "long-poll-key" not in reply.headers


async def test_several_keys_and_several_headers(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """Separated by commas, or each in a header of its own; each of them wakes."""
    order.headers = {}

    def respond() -> Response:
        response = Response(headers={"ETag": '"1"', "Long-Poll-Key": " a,b , ,a"})
        response.raw_headers.append((b"long-poll-key", b"c"))
        return response

    order.make = respond
    request = poll().begin(app)
    for calls, key in enumerate("abc", 2):
        await until_parked(purgatory)
        assert purgatory.watched_keys() == {"a": 1, "b": 1, "c": 1}
        await purgatory.fire(key)
        await until_parked(purgatory)
        assert order.calls == calls
    request.leave()
    await request.end()


async def test_the_keys_are_those_of_the_latest_answer(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """An answer may come to depend on something else."""
    request = poll().begin(app)
    await until_parked(purgatory)
    order.headers = {"Long-Poll-Key": "order:42:paid"}
    await purgatory.fire("order:42")
    await until_parked(purgatory)
    assert purgatory.watched_keys() == {"order:42:paid": 1}
    order.version = 2
    await purgatory.fire("order:42:paid")
    assert (await request.reply()).status == 200


# What counts as the same.


@pytest.mark.parametrize(
    ("asked", "etag"),
    [
        ('"1"', 'W/"1"'),
        ('W/"1"', '"1"'),
        ('W/"1"', 'W/"1"'),
        ('"0", W/"1", "a,b"', '"1"'),
        (' ,, "0" ,\t"1"', '"1"'),
        ('"a,b"', '"a,b"'),
        ("*", '"1"'),
        ("*", 'W/"1"'),
        ("1", '"1"'),
        ("W/1", '"1"'),
    ],
)
async def test_tags_are_compared_weakly(app: ASGIApp, order: Order, asked: str, etag: str) -> None:
    """Lists and the star, as RFC 9110 has them, and one tag without its quotes."""
    order.headers["ETag"] = etag
    order.make = lambda: Response("x", headers=order.headers)
    check_not_modified(await poll(1, asked).begin(app).reply(), "1", etag)


@pytest.mark.parametrize("asked", ['"2"', '"W/1"', '"1', "2", "0, 1", 'w/"1"', '*, "1"', ""])
async def test_other_tags_and_what_is_no_tag(app: ASGIApp, order: Order, asked: str) -> None:
    """Answered at once, as without the middleware."""
    reply = await poll(20, asked).begin(app).reply()
    assert (reply.status, order.calls) == (200, 1)


async def test_an_endpoint_that_answers_304_itself(
    app: ASGIApp, purgatory: Purgatory, order: Order
) -> None:
    """It has compared already: that counts as the same, with its headers."""
    headers = {"ETag": '"1"', "Long-Poll-Key": "order:42", "X-By": "endpoint"}
    order.make = lambda: Response(status_code=304, headers=headers)
    reply = await poll(1).begin(app).reply()
    check_not_modified(reply, "1")
    assert reply.headers["x-by"] == "endpoint"
    request = poll().begin(app)
    await until_parked(purgatory)
    order.make = None
    order.version = 2
    await purgatory.fire("order:42")
    assert (await request.reply()).json() == {"version": 2}


async def test_the_304_keeps_what_is_not_about_the_body(app: ASGIApp, order: Order) -> None:
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
    order.headers |= kept | dropped
    reply = await poll(1).begin(app).reply()
    check_not_modified(reply, "1")
    assert {name.lower(): value for name, value in kept.items()}.items() <= reply.headers.items()
    assert not {name.lower() for name in [*dropped, "Content-Type"]} & set(reply.headers)
