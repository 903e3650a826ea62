"""Errors at start-up that an operator corrects, without a traceback."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from purgatory.errors import SeveralWorkersError, SignalsNotReadyError
from purgatory.jobs.model.errors import StoreNotReadyError


@contextmanager
def logged_in_one_sentence() -> Iterator[None]:
    """Let uvicorn log these errors of a lifespan as what they say.

    Starlette sends the server the text of a traceback, which uvicorn logs.
    """
    try:
        yield
    except (SeveralWorkersError, SignalsNotReadyError, StoreNotReadyError) as exc:
        logger = logging.getLogger("uvicorn.error")
        # The process is about to end, and an application under test starts few times.
        logger.addFilter(_Shortening(str(exc), logger))
        raise


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
