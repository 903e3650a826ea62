"""Sending an answer from outside the request's own task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.types import Message

from purgatory.fastapi.http import asgi as module
from purgatory.fastapi.http.asgi import (
    PIECE,
    ResponseUnreadError,
    send_eagerly,
    send_from_outside,
    send_response,
)
from purgatory.fastapi.http.bounds import UnreadResponses
from purgatory.fastapi.http.responses import RawResponse
from tests.cases import cases
from tests.conftest import anyio_backend as anyio_backend  # both loops
from tests.patience import PATIENCE_S, until_in_turns

Suspend = Callable[[], Awaitable[Any]]

ANSWER = RawResponse.from_json(200, b"{}")


class Failures:
    """Counts how often it was told of one."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def failures() -> Failures:
    """What `send_eagerly` is given to tell of failures."""
    return Failures()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No task is left of any of these tests."""
    yield
    assert not module._unfinished


class Server:
    """Takes messages as a server does, waiting in between as it is told to."""

    def __init__(self, *suspend: Suspend) -> None:
        self.messages: list[Message] = []
        self._suspend = suspend

    async def send(self, message: Message) -> None:
        """Take a message."""
        for suspend in self._suspend:
            await suspend()
        self.messages.append(message)

    @property
    def is_answered(self) -> bool:
        """True iff both messages came, in order."""
        return [message["type"] for message in self.messages] == [
            "http.response.start",
            "http.response.body",
        ]


def _wrapped(send: Any, module_name: str) -> Any:
    """What middleware of a module puts around `send`."""

    async def wrapper(message: Message) -> None:
        await send(message)

    wrapper.__module__ = module_name
    return wrapper


@pytest.mark.parametrize(
    ("modules", "is_at_once"),
    [
        ([], True),
        (["starlette._exception_handler"], True),
        (["starlette._exception_handler", "purgatory.fastapi.long_poll"], True),
        (["application.middleware"], False),
        (["starlette._exception_handler", "application.middleware"], False),
        (["application.middleware", "starlette._exception_handler"], False),
    ],
)
async def test_middleware_that_does_more_than_observe_sends_in_a_task(
    failures: Failures, *, modules: list[str], is_at_once: bool
) -> None:
    """It may need a current task; what only observes, between us and a server, does not."""
    server = Server()

    async def send(message: Message) -> None:
        await server.send(message)

    send.__module__ = "uvicorn.protocols.http"
    outer: Any = send
    for name in modules:
        outer = _wrapped(outer, name)
    send_from_outside(outer, send_response(outer, ANSWER), failures)
    assert server.is_answered == is_at_once
    await until_in_turns(lambda: not module._unfinished)
    assert server.is_answered and failures.count == 0


async def _yield() -> None:
    await asyncio.sleep(0)


async def _later() -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await future


async def _already() -> None:
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    await future


async def _in_a_task() -> None:
    await asyncio.ensure_future(_later())


async def _anyio_checkpoint() -> None:
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "suspend",
    [
        [_yield],
        [_later],
        [_already],
        [_in_a_task],
        [_anyio_checkpoint],
        [_later, _yield, _later],
        [_already, _in_a_task, _yield, _anyio_checkpoint],
    ],
    ids=lambda suspend: "-".join(step.__name__ for step in suspend),
)
async def test_an_answer_that_has_to_wait_is_sent_whole(
    suspend: list[Suspend], failures: Failures
) -> None:
    """However often sending suspends, and on whatever: it is resumed where it was."""
    server = Server(*suspend)
    send_eagerly(send_response(server.send, ANSWER), failures)
    await until_in_turns(lambda: not module._unfinished)
    assert server.is_answered
    assert failures.count == 0


async def test_errors_come_to_whoever_waits(failures: Failures) -> None:
    """What it waits for fails, first or later: it may catch that, and go on."""
    server, caught = Server(), []

    async def send(message: Message) -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, OSError("full"))
        try:
            await future
        except OSError as exc:
            caught.append(exc)
        await server.send(message)

    send_eagerly(send_response(send, ANSWER), failures)
    await until_in_turns(lambda: not module._unfinished)
    assert server.is_answered
    assert len(caught) == 2 and failures.count == 0


@pytest.mark.parametrize("suspend", [[], [_later], [_later, _later]], ids=len)
async def test_an_answer_that_cannot_be_sent(
    suspend: list[Suspend], failures: Failures, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and told, and is no error of whoever completed the operation."""

    async def fail() -> None:
        raise RuntimeError("the handler is closed")

    send_eagerly(send_response(Server(*suspend, fail).send, ANSWER), failures)
    await until_in_turns(lambda: not module._unfinished)
    assert failures.count == 1
    [record] = caplog.records
    assert (record.name, record.levelname) == ("purgatory.fastapi", "ERROR")
    assert record.exc_info is not None and "closed" in str(record.exc_info[1])


async def test_what_is_cancelled_is_told_of_it(failures: Failures) -> None:
    """A server that shuts down cancels its tasks: what was being sent may clean up."""
    told = []

    async def send(message: Message) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            told.append(message["type"])
            raise

    send_eagerly(send_response(send, ANSWER), failures)
    [task] = module._unfinished
    # So that it has begun to wait.
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert told == ["http.response.start"]
    assert task.cancelled()


async def test_from_within_a_cancelled_scope(failures: Failures) -> None:
    """Whoever fires may be cancelled: the answer, which is another's, is sent all the same."""
    sending, receiving = anyio.create_memory_object_stream[Message]()
    with sending, receiving:
        with anyio.CancelScope() as scope:  # noqa: ASYNC100 - it is cancelled at once
            scope.cancel()
            send_eagerly(send_response(sending.send, ANSWER), failures)
        with anyio.fail_after(PATIENCE_S):
            types = [(await receiving.receive())["type"] for _ in range(2)]
            await until_in_turns(lambda: not module._unfinished)
    assert types == ["http.response.start", "http.response.body"]


@cases("more", [0, 1])
async def test_a_long_answer_is_sent_in_pieces(*, more: int) -> None:
    """Of which the last one says that it is the last; those that are sent are not unread."""
    unread = UnreadResponses()
    left: list[int] = []

    async def note() -> None:
        left.append(unread.held_bytes)

    server = Server(note)
    body = b"x" * (2 * PIECE + more)
    await send_response(server.send, RawResponse.from_json(200, body), unread)
    start, *pieces = server.messages
    assert (start["type"], b"".join(piece["body"] for piece in pieces)) == (
        "http.response.start",
        body,
    )
    assert [piece.get("more_body", False) for piece in pieces] == [True] * (1 + more) + [False]
    assert (left[0], unread.held_bytes, len(unread)) == (len(body), 0, 0)


class Other:
    """A response that is not read either."""

    unread_bytes = 2 * PIECE

    def give_up(self) -> None:
        """It is the newer one."""
        raise AssertionError


@cases("is_cancelled", [False, True])
async def test_a_long_answer_is_given_up_for_another(*, is_cancelled: bool) -> None:
    """With an error of its own, unless somebody else has cancelled the task as well."""
    unread = UnreadResponses(60, 3 * PIECE)
    server = Server(asyncio.Event().wait)
    answer = RawResponse.from_json(200, b"x" * (2 * PIECE))
    task = asyncio.create_task(send_response(server.send, answer, unread))
    await until_in_turns(lambda: len(unread) == 1)
    if is_cancelled:
        task.cancel()
    other = Other()
    unread.hold(other, other.unread_bytes)
    with pytest.raises(asyncio.CancelledError if is_cancelled else ResponseUnreadError):
        await task
    unread.release(other)
    assert (server.messages, len(unread), unread.held_bytes) == ([], 0, 0)
