"""An ordinary application with a purgatory in it."""

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from purgatory import DelayedOperation, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, DelayedResponse, install
from purgatory.fastapi.http.asgi import Respond
from tests.benchmarks.http.probe import probe


class Order(DelayedOperation):
    """Answers once its key was fired."""

    __slots__ = ("_key", "_respond", "_tries")

    def __init__(self, key: str, wait: float, respond: Respond) -> None:
        super().__init__(round(wait * 1000))
        self._key = key
        self._respond = respond
        self._tries = 0

    def try_complete(self) -> bool:
        """Complete the third time: before and behind the watching it is tried as well."""
        self._tries += 1
        return self._tries > 2 and self.force_complete()

    def on_complete(self) -> None:
        """Answer."""
        self._respond(JSONResponse({"key": self._key, "reason": self.status}))


def create_app() -> FastAPI:
    """Return an application with the defaults, and two endpoints of its own."""
    app = FastAPI()
    purgatory = Purgatory()
    install(app, purgatory, authorize=ALLOW_ANYONE)

    @app.get("/own/{key}")
    async def own(key: str, wait: float = 25.0) -> Response:
        def park(respond: Respond) -> DelayedOperation:
            order = Order(key, wait, respond)
            purgatory.park_operation(order, [key])
            return order

        return DelayedResponse(park)

    @app.get("/bench")
    async def bench() -> dict[str, int]:
        return probe(purgatory.parked)

    return app
