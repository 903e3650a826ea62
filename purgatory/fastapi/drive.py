"""Sending an answer from outside the request's own task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator
from typing import Any

from starlette.types import Send

from purgatory.fastapi.answer import Answer

logger = logging.getLogger("purgatory.fastapi")

# Tasks are weakly held by their loop.
_unfinished: set[asyncio.Task[None]] = set()


async def send_answer(send: Send, answer: Answer) -> None:
    """Send `answer` whole."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})


def drive(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run `coroutine` here and now; what is left of it, where it has to wait, in a task.

    Servers send a small answer without waiting, so that waking a parked request costs no turn of
    the event loop; under a middleware that hands messages on through a queue it does wait.
    """
    try:
        pending = coroutine.send(None)
    except StopIteration:
        return
    task = asyncio.get_running_loop().create_task(_finish(coroutine, pending))
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)


async def _finish(coroutine: Coroutine[Any, Any, None], pending: Any) -> None:
    try:
        await _Resumed(coroutine, pending)
    except Exception:
        logger.exception("an answer was not sent", extra={"action": "answer-failed"})


class _Resumed:
    """Awaits a coroutine that has been run up to `pending`, the first thing that it waits for."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], pending: Any) -> None:
        self._coroutine = coroutine
        self._pending = pending

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield self._pending
        except BaseException:
            self._coroutine.close()
            raise
        yield from self._coroutine.__await__()
