"""Sending a response from outside the task of its request."""

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


async def send_response(send: Send, response: RawResponse) -> None:
    """Send a whole response."""
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": response.headers,
        }
    )
    await send({"type": "http.response.body", "body": response.body})


def send_eagerly(coroutine: Coroutine[Any, Any, None], on_failure: Callable[[], object]) -> None:
    """Run `coroutine` at once; if it waits for something, finish it in a task.

    Servers send a small response without waiting, so that waking a parked request costs no turn of
    the event loop; under a middleware that passes messages through a queue it does wait. An
    exception is logged and followed by `on_failure`: the caller, which completed an operation, did
    not cause it.
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
    """Run `coroutine` in a task, for what needs a current task; else as `send_eagerly`."""
    finish_in_task(_finish(coroutine, on_failure))


def finish_in_task(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run `coroutine` in a task that is not awaited; it must not raise."""
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
    logger.exception("could not send a response", extra={"action": "response-failed"})


class Resumed(Generic[Result]):
    """Awaits the rest of a coroutine that has run until it yielded `pending`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Result], pending: Any) -> None:
        self._coroutine = coroutine
        self._pending = pending

    def __await__(self) -> Generator[Any, Any, Result]:
        pending = self._pending
        step: Callable[[Any], Any]
        while True:
            # As `yield from`, for a coroutine that has begun.
            try:
                sent = yield pending
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as exc:
                step, argument = self._coroutine.throw, exc
            else:
                step, argument = self._coroutine.send, sent
            try:
                pending = step(argument)
            except StopIteration as finished:
                result: Result = finished.value
                return result
