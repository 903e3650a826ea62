"""Errors at start-up that an operator corrects, without a traceback."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import sys
from typing import Final

from purgatory.errors import SeveralWorkersError, SignalsNotReadyError
from purgatory.fastapi.servers.workers import is_uvicorn_worker
from purgatory.jobs.model.errors import StoreNotReadyError

START_ERRORS: Final = (SeveralWorkersError, SignalsNotReadyError, StoreNotReadyError)
"""Errors that say what to correct, and where."""
# The exit status of a worker for which uvicorn stops the others; older ones have no name for it.
UVICORN_STARTUP_FAILURE: Final = 3


def log_in_one_sentence(error: Exception) -> None:
    """Let uvicorn log `error`, which ends a lifespan, as what it says.

    Starlette sends the server the text of a traceback, which uvicorn logs. A worker process ends
    without one, and at once.
    """
    logger = logging.getLogger("uvicorn.error")
    # The process is about to end, and an application under test starts few times.
    logger.addFilter(_Shortening(str(error), logger))
    _end_shortly(is_of_uvicorn=is_uvicorn_worker(sys._getframe()))


def _end_shortly(*, is_of_uvicorn: bool) -> None:
    """Have a worker process, which ends with the error, say little and end at once."""
    if multiprocessing.parent_process() is None:
        return
    if is_of_uvicorn:
        # Its supervisor waits 5 s for a worker that no longer answers and has not ended yet, which
        # is while Python takes its objects apart.
        atexit.register(_ExitAfterHandlers())
    else:
        # For hypercorn and granian, which print what was raised: the last lines say it all.
        sys.tracebacklimit = 0


class _ExitAfterHandlers:
    """Registered with `atexit` and referenced by nothing else, ends the process when it is deleted.

    `atexit` calls what was registered last first, and whoever ends the process in a handler keeps
    those of the application from being called. It releases them after it has called all of them.
    """

    def __call__(self) -> None:
        """Do nothing yet."""

    def __del__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(UVICORN_STARTUP_FAILURE)


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
