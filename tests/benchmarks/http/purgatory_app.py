"""An ordinary application with a purgatory in it."""

from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import install
from tests.benchmarks.http.probe import probe


def create_app() -> FastAPI:
    """Return an application with the defaults, and an endpoint of its own."""
    app = FastAPI()
    purgatory = Purgatory()
    install(app, purgatory)

    @app.get("/bench")
    async def bench() -> dict[str, int]:
        return probe(purgatory.parked)

    return app
