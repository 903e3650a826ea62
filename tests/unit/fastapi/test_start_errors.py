"""How an application does not start, if an operator can correct what is wrong."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from purgatory import Purgatory
from purgatory.errors import SeveralWorkersError
from purgatory.fastapi import install
from purgatory.job_errors import StoreNotReadyError
from purgatory.jobs.sql import SqlJobStore


def test_the_traceback_ends_where_the_purgatory_is_opened(tmp_path: Path) -> None:
    """In tests and on servers that print it; uvicorn logs the sentence alone."""
    app = FastAPI()
    install(app, Purgatory(jobs=SqlJobStore(f"sqlite+aiosqlite:///{tmp_path}/none.db")))
    with pytest.raises(StoreNotReadyError, match="there is no SQLite file") as caught:
        TestClient(app).__enter__()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename.endswith("router.py")
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("limit", [1000, 0], ids=["frames", "no frames"])
def test_uvicorn_logs_the_sentence(
    limit: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what Starlette sends, the text of a traceback, only the end is left."""
    monkeypatch.setattr(sys, "tracebacklimit", limit, raising=False)
    app = FastAPI()
    install(app, Purgatory(jobs=SqlJobStore(f"sqlite+aiosqlite:///{tmp_path}/none.db")))
    with pytest.raises(StoreNotReadyError) as caught:
        TestClient(app).__enter__()
    logger = logging.getLogger("uvicorn.error")
    logger.error("".join(traceback.format_exception(caught.value)))
    logger.error("Traceback of another error")
    assert caplog.messages == [str(caught.value), "Traceback of another error"]


def test_several_workers_are_refused_before_the_application_s_own_lifespan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may open the purgatory or connections, and run jobs by then."""
    monkeypatch.setattr(sys, "argv", ["granian", "--workers", "2"])
    began = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        began.append(app)
        yield

    app = FastAPI(lifespan=lifespan)
    install(app, Purgatory())
    with pytest.raises(SeveralWorkersError, match="2 workers"):
        TestClient(app).__enter__()
    assert not began
    app = FastAPI(lifespan=lifespan)
    install(app, Purgatory(), allow_separate_workers=True)
    with TestClient(app):
        assert began == [app]
