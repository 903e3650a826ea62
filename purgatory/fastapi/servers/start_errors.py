"""Errors at start-up that an operator corrects, without a traceback."""

from __future__ import annotations

import logging
from typing import Final

from purgatory.errors import SeveralWorkersError, SignalsNotReadyError
from purgatory.jobs.model.errors import StoreNotReadyError

START_ERRORS: Final = (SeveralWorkersError, SignalsNotReadyError, StoreNotReadyError)
"""Errors that say what to correct, and where."""


def log_in_one_sentence(error: Exception) -> None:
    """Let uvicorn log `error`, which ends a lifespan, as what it says.

    Starlette sends the server the text of a traceback, which uvicorn logs.
    """
    logger = logging.getLogger("uvicorn.error")
    # The process is about to end, and an application under test starts few times.
    logger.addFilter(_Shortening(str(error), logger))


class _Shortening(logging.Filter):
    """Replaces the traceback of one error, once."""

    def __init__(self, sentence: str, logger: logging.Logger) -> None:
        super().__init__()
        self._sentence = sentence
        self._logger = logger

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if self._sentence in text and text.startswith("Traceback"):
            record.msg, record.args = self._sentence, ()
            self._logger.removeFilter(self)
        return True
