"""A fire on one purgatory, and a wait on another, by mistake."""

import logging

import pytest
from fastapi import Depends, FastAPI, Response
from starlette.testclient import TestClient

from purgatory import Purgatory
from purgatory.fastapi import LongPollKey, LongPollMiddleware, create_router, install
from tests.unit.purgatory.waiting import Make, parked


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is said."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


async def test_a_fire_that_wakes_nobody_here(
    make_purgatory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, with the key and how many wait on the other."""
    async with make_purgatory() as one, make_purgatory() as other:
        tasks = [await parked(other, "a") for _ in range(2)]
        await one.fire("b")
        assert warnings(caplog) == []
        for _ in range(3):
            await one.fire("a")
        await other.cancel("a")
        assert all([(await task).status == "cancelled" for task in tasks])
    [warning] = warnings(caplog)
    assert "key 'a' was fired" in warning and "while 2 operations wait on another" in warning


async def test_what_is_no_mistake(make_purgatory: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Other names, somebody who waits here too, and one that is closed."""
    async with make_purgatory() as one, make_purgatory(name="orders") as orders:
        task = await parked(orders, "a")
        await one.fire("a")
        async with make_purgatory() as other:
            here, there = await parked(one, "a"), await parked(other, "a")
            assert (await one.fire("a")).completed == 1
            await here
        assert (await there).status == "drained"
        await one.fire("a")
        await orders.fire("a")
        await task
    assert warnings(caplog) == []


def test_a_second_one_is_not_installed() -> None:
    """The error names the way out; the same one may be installed under two prefixes."""
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory)
    install(app, purgatory, prefix="/second")
    with pytest.raises(ValueError, match=r"is installed in this application: .*create_router"):
        install(app, Purgatory(), prefix="/third")
    app.include_router(create_router(Purgatory("other"), prefix="/other"))


@pytest.mark.parametrize("is_same", [True, False])
def test_the_middleware_has_another_than_the_application(
    is_same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said at the start."""
    app, purgatory = FastAPI(), Purgatory("installed")
    install(app, purgatory)
    app.add_middleware(
        LongPollMiddleware, purgatory=purgatory if is_same else Purgatory("of the middleware")
    )
    with TestClient(app):
        pass
    said = [text for text in warnings(caplog) if "LongPollMiddleware waits on" in text]
    assert len(said) == (not is_same)
    assert all("'of the middleware'" in text and "'installed'" in text for text in said)


def test_install_twice() -> None:
    """The error says so, where FastAPI warned of duplicate operations."""
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory)
    with pytest.raises(ValueError, match=r"install was called twice.*'/purgatory'.*prefix"):
        install(app, purgatory)


def test_a_second_purgatory_below_the_first() -> None:
    """Its router may be included before."""
    app = FastAPI()
    app.include_router(create_router(Purgatory(), prefix="/purgatory/other"))
    install(app, Purgatory())
    with TestClient(app) as client:
        for prefix in ("/purgatory", "/purgatory/other"):
            assert client.get(f"{prefix}/watch/k?wait=0").status_code == 200


def test_the_middleware_twice(caplog: pytest.LogCaptureFixture) -> None:
    """One warning says so, and the outer one does what a single one does."""
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory)
    for _ in range(2):
        app.add_middleware(LongPollMiddleware, purgatory=purgatory)

    @app.get("/orders/{order}", dependencies=[Depends(LongPollKey("order:{order}"))])
    async def show(response: Response) -> None:
        response.headers["ETag"] = '"1"'

    with TestClient(app) as client:
        # Longer than a busy machine needs for the endpoint: what is over by then does not park.
        headers = {"Prefer": "wait=1", "If-None-Match": '"1"'}
        assert client.get("/orders/42", headers=headers).status_code == 304
    [said] = warnings(caplog)
    assert "LongPollMiddleware was added twice" in said and "add_middleware" in said
    assert purgatory.statistics().expired == 1
