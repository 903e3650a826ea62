"""Sending an answer from outside the request's own task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from starlette.types import Send

from purgatory.fastapi.http.raw_response import RawResponse

Result = TypeVar("Result")

logger = logging.getLogger("purgatory.fastapi")

# Tasks are weakly held by their loop.
_unfinished: set[asyncio.Task[None]] = set()


async def send_response(send: Send, answer: RawResponse) -> None:
    """Send `answer` whole."""
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})


def send_eagerly(coroutine: Coroutine[Any, Any, None], on_failure: Callable[[], object]) -> None:
    """Run `coroutine` here and now; what is left of it, where it has to wait, in a task.

    Servers send a small answer without waiting, so that waking a parked request costs no turn of
    the event loop; under a middleware that hands messages on through a queue it does wait. What it
    raises is logged, and `on_failure` called: whoever completed the operation is not to blame.
    """
    try:
        pending = coroutine.send(None)
    except StopIteration:
        return
    except Exception:
        _log_failure()
        on_failure()
        return
    finish_in_task(_finish(Resumed(coroutine, pending), on_failure))


def run_in_task(coroutine: Coroutine[Any, Any, None], on_failure: Callable[[], object]) -> None:
    """Run `coroutine` in a task of its own, as what it awaits may need; else as `send_eagerly`."""
    finish_in_task(_finish(coroutine, on_failure))


def finish_in_task(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run `coroutine` in a task that nobody waits for; it must not raise."""
    task = asyncio.get_running_loop().create_task(coroutine)
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)


async def _finish(rest: Awaitable[None], on_failure: Callable[[], object]) -> None:
    try:
        await rest
    except Exception:
        _log_failure()
        on_failure()


def _log_failure() -> None:
    logger.exception("an answer was not sent", extra={"action": "answer-failed"})


class Resumed(Generic[Result]):
    """Awaits a coroutine that has been run up to `pending`, the first thing that it waits for."""

    def __init__(self, coroutine: Coroutine[Any, Any, Result], pending: Any) -> None:
        self._coroutine = coroutine
        self._pending = pending

    def __await__(self) -> Generator[Any, Any, Result]:
        pending = self._pending
        step: Callable[[Any], Any]
        while True:
            # As `yield from`, for a coroutine that has begun already.
            try:
                sent = yield pending
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as exc:
                step, told = self._coroutine.throw, exc
            else:
                step, told = self._coroutine.send, sent
            try:
                pending = step(told)
            except StopIteration as finished:
                result: Result = finished.value
                return result
