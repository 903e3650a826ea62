"""InterruptibleReceive: waiting for a message until told not to."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from purgatory.fastapi.watch.interruptible_receive import InterruptibleReceive
from tests.cases import cases

MESSAGE: Message = {"type": "http.disconnect"}


class Server:
    """Has a message once it is told to."""

    def __init__(self) -> None:
        self.happened = asyncio.Event()

    async def receive(self) -> Message:
        await self.happened.wait()
        return MESSAGE


async def waiting(receive: Callable[[], Awaitable[Message | None]]) -> asyncio.Task[Message | None]:
    """A task that waits by now."""
    task = asyncio.ensure_future(receive())
    await asyncio.sleep(0)
    return task


async def test_a_message_and_an_interruption_in_the_same_turn() -> None:
    """Whichever wins, nothing is left over: the next wait is not disturbed."""
    for first in ("message", "interruption"):
        server = Server()
        receive = InterruptibleReceive(server.receive)
        task = await waiting(receive)
        for what in (first, "message", "interruption"):
            if what == "message":
                server.happened.set()
            else:
                receive.interrupt()
        assert await task in (None, MESSAGE)
        assert await receive() == MESSAGE


async def test_a_receive_that_does_not_let_itself_be_cancelled() -> None:
    """Its message counts, and the task is no longer being cancelled."""

    async def stubborn() -> Message:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            pass
        return MESSAGE

    receive = InterruptibleReceive(stubborn)

    async def wait() -> tuple[Message | None, int]:
        message = await receive()
        task = asyncio.current_task()
        assert task is not None
        return message, task.cancelling()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    receive.interrupt()
    assert await task == (MESSAGE, 0)


@cases("order", [("cancel", "interrupt"), ("interrupt", "cancel")])
async def test_a_cancellation_from_elsewhere_is_not_taken_for_an_interruption(
    order: tuple[str, str],
) -> None:
    """A server that cancels the request's task has it end, also in the same turn."""
    receive = InterruptibleReceive(Server().receive)
    task = await waiting(receive)
    for what in order:
        if what == "cancel":
            task.cancel()
        else:
            receive.interrupt()
    with pytest.raises(asyncio.CancelledError):
        await task
