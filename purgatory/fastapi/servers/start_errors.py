"""Errors at start-up that an operator corrects, without a traceback."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import sys
import threading
from typing import Any, Final

from purgatory.errors import SeveralWorkersError, SignalsNotReadyError
from purgatory.fastapi.servers.workers import (
    is_later_uvicorn_worker,
    is_uvicorn_worker,
    uvicorn_server,
)
from purgatory.job_errors import StoreNotReadyError

START_ERRORS: Final = (SeveralWorkersError, SignalsNotReadyError, StoreNotReadyError)
"""Errors that say what to correct, and where."""
# The exit status of a worker for which uvicorn stops the others; older ones have no name for it.
UVICORN_STARTUP_FAILURE: Final = 3
# For so long, a worker leaves it to the first one to say what both have found.
PATIENCE_S: Final = 10.0


def log_in_one_sentence(error: Exception) -> None:
    """Let uvicorn log `error`, which ends a lifespan, as what it says.

    Starlette sends the server the text of a traceback, which uvicorn logs. A worker process ends
    without one, and at once. Of several that uvicorn starts, the first one logs it, and the others
    wait until uvicorn stops them for that.
    """
    logger = logging.getLogger("uvicorn.error")
    frame = sys._getframe()
    is_silent = is_later_uvicorn_worker(frame)
    # The process is about to end, and an application under test starts few times.
    logger.addFilter(_Silence(logger) if is_silent else _Shortening(str(error), logger))
    # A worker process ends with the error.
    if multiprocessing.parent_process() is None:
        return
    if is_uvicorn_worker(frame):
        # Its supervisor waits 5 s for a worker that no longer answers and has not ended yet, which
        # is while Python takes its objects apart.
        left_unsaid = str(error) if is_silent else ""
        atexit.register(_ExitAfterHandlers(left_unsaid, uvicorn_server(frame)))
    else:
        # For hypercorn and granian, which print what was raised: the last lines say it all.
        sys.tracebacklimit = 0


class _ExitAfterHandlers:
    """Registered with `atexit` and referenced by nothing else, ends the process when it is deleted.

    `atexit` calls what was registered last first, and whoever ends the process in a handler keeps
    those of the application from being called. It releases them after it has called all of them.
    """

    def __init__(self, left_unsaid: str, server: Any) -> None:
        """Log `left_unsaid`, if it is not empty, unless uvicorn stops the process before."""
        self._left_unsaid = left_unsaid
        self._server = server

    def __call__(self) -> None:
        """Do nothing yet."""

    def __del__(self) -> None:
        # The server has taken a signal that came before. By now its handlers are gone, and SIGTERM
        # ends the process.
        if self._left_unsaid and not getattr(self._server, "should_exit", False):
            threading.Event().wait(PATIENCE_S)
            logging.getLogger("uvicorn.error").error(self._left_unsaid)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(UVICORN_STARTUP_FAILURE)


class _Silence(logging.Filter):
    """Drops the traceback of one error, and that the start has failed."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            return True
        if record.getMessage().startswith("Application startup failed"):
            self._logger.removeFilter(self)
        return False


class _Shortening(logging.Filter):
    """Replaces the traceback of one error, once."""

    def __init__(self, sentence: str, logger: logging.Logger) -> None:
        super().__init__()
        self._sentence = sentence
        self._logger = logger

    def filter(self, record: logging.LogRecord) -> bool:
        if self._sentence in record.getMessage():
            record.msg, record.args = self._sentence, ()
            self._logger.removeFilter(self)
        return True
