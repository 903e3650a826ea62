"""The lifespan that opens and closes a purgatory with the application."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from purgatory.errors import SeveralWorkersError
from purgatory.fastapi.servers.fast_routes import fast_routes_installed
from purgatory.fastapi.servers.server_stop import drain_on_stop
from purgatory.fastapi.servers.start_errors import START_ERRORS, log_in_one_sentence
from purgatory.fastapi.servers.workers import check_workers
from purgatory.purgatory import Purgatory

Lifespan = Callable[[Any], AbstractAsyncContextManager[dict[str, Purgatory]]]


def create_lifespan(purgatory: Purgatory, *, allow_separate_workers: bool = False) -> Lifespan:
    """Return a lifespan that opens `purgatory`, drains it on SIGTERM and closes it at the end.

    For `FastAPI(lifespan=...)`; it yields `{"purgatory": purgatory}` as state. Entered twice, it
    opens once. Raises SeveralWorkersError at start-up if the server runs several workers, however
    it was told to, unless they share signals.
    """
    return lifespan_with(purgatory, None, allow_separate_workers=allow_separate_workers)


def lifespan_with(
    purgatory: Purgatory,
    on_drain: Callable[[], object] | None,
    *,
    allow_separate_workers: bool = False,
) -> Lifespan:
    """Return the same, with what is called as the drain begins on a signal."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Purgatory]]:
        refuse_several_workers(purgatory, allow_separate_workers=allow_separate_workers)
        if allow_separate_workers and purgatory.has_jobs:
            purgatory.jobs.allows_separate_workers = True
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(purgatory)
            except START_ERRORS as exc:
                log_in_one_sentence(exc)
                # Servers other than uvicorn print the traceback: without our frames, which say
                # nothing that the sentence does not.
                raise exc.with_traceback(None) from None
            with drain_on_stop(purgatory, on_drain), fast_routes_installed(app):
                yield {"purgatory": purgatory}

    return lifespan


def refuse_several_workers(purgatory: Purgatory, *, allow_separate_workers: bool) -> None:
    """Raise SeveralWorkersError, logged in one sentence, if workers would not share signals."""
    if purgatory.shared_signals is not None:
        return
    try:
        check_workers(sys.argv, os.environ, allow_separate_workers=allow_separate_workers)
    except SeveralWorkersError as exc:
        log_in_one_sentence(exc)
        raise exc.with_traceback(None) from None
