"""An application in which something goes wrong whenever it is asked to."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import anyio.from_thread
from fastapi import FastAPI
from starlette.responses import PlainTextResponse

from purgatory import DelayedOperation, Purgatory, Status, WrongThreadError
from purgatory.fastapi import DelayedResponse, ParkDep
from purgatory.fastapi.parking import Respond
from purgatory.operations import OperationEvent
from tests.acceptance.application import create_app

BLOCKED = 1.0

Fault = Literal["none", "raises", "blocks"]


class Faulted(Exception):
    """Something of the user's own went wrong."""


def commit(fault: Fault) -> None:
    """Go wrong."""
    if fault == "raises":
        raise Faulted
    if fault == "blocks":
        time.sleep(BLOCKED)


class FaultyListener:
    """Goes wrong when the next operation ends, once for each time it was told to."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.ended = 0

    def __call__(self, event: OperationEvent) -> None:
        if event.status is not Status.PENDING:
            self.ended += 1
            if self.faults:
                commit(self.faults.pop())


class FaultyOperation(DelayedOperation):
    """Answers a request when it is tried for the third time, or goes wrong."""

    def __init__(self, respond: Respond, fault: Fault) -> None:
        super().__init__(50_000)
        self._respond = respond
        self._fault = fault
        self._tries = 0

    def try_complete(self) -> bool:
        # Once before its key is watched and once behind that; the third time is a fire.
        self._tries += 1
        return self._tries > 2 and self.force_complete()

    def on_complete(self) -> None:
        commit(self._fault)
        self._respond(PlainTextResponse("done"))


class FaultyApplication:
    """The application and what a test needs of it."""

    def __init__(self, purgatory: Purgatory) -> None:
        self.purgatory = purgatory
        self.app: FastAPI = FastAPI()
        self.release = asyncio.Event()
        self._add_endpoints()
        create_app(purgatory, self.app)

    def _add_endpoints(self) -> None:
        app, purgatory = self.app, self.purgatory

        @app.get("/predicate/{key}")
        async def predicate(key: str, fault: Fault, park: ParkDep) -> str:
            tries = 0

            def until() -> bool:
                nonlocal tries
                tries += 1
                if tries > 2:
                    commit(fault)
                return tries > 2

            return (await park(key, timeout=50, until=until)).status

        @app.get("/operation/{key}")
        async def operation(key: str, fault: Fault) -> DelayedResponse:
            def parked(respond: Respond) -> DelayedOperation:
                made = FaultyOperation(respond, fault)
                purgatory.park_operation(made, [key])
                return made

            return DelayedResponse(parked)

        @app.get("/handler")
        async def handler(fault: Fault) -> str:
            commit(fault)
            return "done"

        @app.get("/hang")
        async def hang() -> str:
            await self.release.wait()
            return "released"

        @app.post("/from-thread/{key}")
        def from_thread(key: str) -> int:
            return anyio.from_thread.run(purgatory.fire, key, "by a thread").completed

        @app.post("/wrong-thread/{key}")
        def wrong_thread(key: str) -> list[str]:
            found = []
            for use in (lambda: asyncio.run(purgatory.fire(key)), lambda: purgatory.check(key)):
                try:
                    use()
                except WrongThreadError as exc:
                    found.append(exc.detail)
            return found
