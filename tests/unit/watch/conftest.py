"""An application with our endpoints, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import ALLOW_ANYONE, install
from purgatory.testing import AutojumpEventLoop


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time jumps to the next timer."""
    return "asyncio", {"loop_factory": AutojumpEventLoop}


@pytest.fixture
def app(purgatory: Purgatory) -> FastAPI:
    """An application that has nothing else."""
    app = FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)
    return app
