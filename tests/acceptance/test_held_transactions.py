"""Dependencies that hold a database transaction while their request is parked."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from purgatory import DelayedOperation, Purgatory
from purgatory.fastapi import DelayedResponse, ParkDep, install
from tests.needs import ASYNC_OBJECTS


class Soon(DelayedOperation):
    """Responds at its deadline."""

    def __init__(self, respond: object) -> None:
        super().__init__(1)
        self.respond = respond

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        assert callable(self.respond)
        self.respond(PlainTextResponse("expired"))


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    """Endpoints that park with a session, in the ways in which it is held or not."""
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory)
    # No pool: nothing here would close what stays in it.
    engine = create_engine(f"sqlite:///{tmp_path}/a.db", poolclass=NullPool)
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/a.db", poolclass=NullPool)

    def get_session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session

    async def get_async_session() -> AsyncIterator[AsyncSession]:
        session = AsyncSession(async_engine)
        try:
            yield session
        finally:
            await session.close()

    @app.get("/held/{order}")
    async def held(session: Annotated[Session, Depends(get_session)], park: ParkDep) -> str:
        session.execute(text("SELECT 1"))
        return (await park("k", timeout=0.001)).status

    @app.get("/async")
    async def held_async(
        session: Annotated[AsyncSession, Depends(get_async_session)], park: ParkDep
    ) -> str:
        await session.execute(text("SELECT 1"))
        return (await park("k", timeout=0.001)).status

    @app.get("/delayed")
    async def delayed(session: Annotated[Session, Depends(get_session)]) -> DelayedResponse:
        session.execute(text("SELECT 1"))

        def park(respond: object) -> DelayedOperation:
            operation = Soon(respond)
            purgatory.park_operation(operation, ["k"])
            return operation

        return DelayedResponse(park)

    class Endpoint:
        """Cannot be hashed."""

        __hash__ = None  # type: ignore[assignment] # as for a dataclass

        async def __call__(
            self, session: Annotated[Session, Depends(get_session)], park: ParkDep
        ) -> str:
            session.execute(text("SELECT 1"))
            return (await park("k", timeout=0.001)).status

    app.get("/object")(Endpoint())

    @app.get("/committed")
    async def committed(session: Annotated[Session, Depends(get_session)], park: ParkDep) -> str:
        session.execute(text("SELECT 1"))
        session.commit()
        return (await park("k", timeout=0.001)).status

    @app.get("/unused")
    async def unused(session: Annotated[Session, Depends(get_session)], park: ParkDep) -> str:
        return (await park("k", timeout=0.001)).status

    @app.get("/none")
    async def none(park: ParkDep) -> str:
        return (await park("k", timeout=0.001)).status

    return app


@pytest.mark.parametrize(
    ("target", "route", "dependency", "kind"),
    [
        ("/held/1", "GET /held/{order}", "get_session", "Session"),
        ("/async", "GET /async", "get_async_session", "AsyncSession"),
        pytest.param("/object", "GET /object", "get_session", "Session", marks=ASYNC_OBJECTS),
        ("/delayed", "GET /delayed", "get_session", "Session"),
    ],
)
def test_it_is_said_once_for_a_route(
    app: FastAPI,
    caplog: pytest.LogCaptureFixture,
    target: str,
    route: str,
    dependency: str,
    kind: str,
) -> None:
    """With the route, the dependency and the way out."""
    with TestClient(app) as client:
        for _ in range(3):
            assert "expired" in client.get(target).text
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning.startswith(f"{route} parks while its dependency ")
    assert f"{dependency} holds a transaction of {kind}," in warning
    assert "end it before" in warning


@pytest.mark.parametrize("target", ["/committed", "/unused", "/none"])
def test_what_holds_no_connection_is_no_mistake(
    app: FastAPI, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    """There are no false alarms."""
    with TestClient(app) as client:
        assert client.get(target).json() == "expired"
    assert [r for r in caplog.records if r.levelname == "WARNING"] == []
