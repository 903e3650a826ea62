"""Questions to the other processes that share signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from secrets import token_hex
from typing import Any, Final, NamedTuple, TypeVar

from purgatory.errors import SignalsUnavailableError
from purgatory.redis_server.script import CONNECTION_ERRORS
from purgatory.redis_server.server import RedisServer
from purgatory.redis_server.subscription import Subscription, publish

logger = logging.getLogger("purgatory.signals.redis")

# A process that is suspended does not answer: the others need not wait for it any longer.
ANSWER_S: Final = 1.0
_STOP_S: Final = 0.5
# Bytes of a message: longer answers are taken for none, and longer messages for no message.
MAX_MESSAGE: Final = 8 * 1024 * 1024
# Questions that are answered at once: more are left without an answer.
MAX_REPLIES: Final = 100
# At a time: each takes a connection of the client, which has a bounded number.
_MAX_PUBLISHING: Final = 8
# [name of the asker, number, question, argument or answer]: the last is a text or a number. So no
# message nests, whatever is in the text.
_MESSAGE: Final = re.compile(
    rb'\["([0-9a-f]{12})", ([0-9]{1,15}), ("(?:[^"\\]|\\.){1,600}"), (".*"|[0-9]{1,15})\]',
    re.DOTALL,
)

_Answer = TypeVar("_Answer", int, str)


class _Message(NamedTuple):
    """A question, or an answer to one."""

    asker: str
    """The name of the process that sent it."""
    number: int
    """Of the question; 0 if it needs no answer."""
    question: str
    argument: int | str


class Peers:
    """Asks the other processes, and answers them: what is known to one process only.

    By pub/sub, as an answer is of use only now. The server says how many processes a question has
    reached, so that nobody waits for more answers than will come.
    """

    def __init__(self, prefix: str, server: RedisServer) -> None:
        """Ask those that use the same prefix."""
        self._name = token_hex(6)
        self._server = server
        # One slot of a cluster, whose node all of them subscribe at.
        self._tag = f"{{{prefix}:signals:0}}:"
        self.channel = f"{self._tag}peers"
        self._own_channel = ""
        self._subscription: Subscription | None = None
        self._replies: set[asyncio.Task[None]] = set()
        # {number of a question: its answers, which are waited for}
        self._asked: dict[int, asyncio.Queue[_Message]] = {}
        self._number = 0
        self._has_warned = False
        self._publishing = asyncio.Semaphore(_MAX_PUBLISHING)
        self.answers: dict[str, Callable[[str], int | Awaitable[str]]] = {}
        """{question: the function that answers it}: by a number at once, or by a text later."""

    def start(self) -> None:
        """Subscribe, on the running event loop."""
        self.channel = self._server.channel(f"{self._tag}peers")
        self._own_channel = f"{self.channel}:{self._name}"
        self._publishing = asyncio.Semaphore(_MAX_PUBLISHING)
        self._subscription = Subscription(
            self._server,
            self._tag,
            [self.channel, self._own_channel],
            on_message=self._handle,
            logger=logger,
        )
        self._subscription.start()

    async def stop(self) -> None:
        """Unsubscribe."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.stop()
        while tasks := list(self._replies):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_STOP_S)

    async def ask(self, question: str, argument: str, kind: type[_Answer]) -> list[_Answer]:
        """Return the answers of the other processes that are of `kind`, a number or a text.

        A process that does not answer within a second, or fails to, is left out. Raises
        SignalsUnavailableError.
        """
        # A task of its own: a server may run the first step of its caller outside any.
        answers = await asyncio.create_task(self._ask(question, argument))
        return [answer for answer in answers if isinstance(answer, kind)]

    async def _ask(self, question: str, argument: str) -> list[int | str]:
        if self._subscription is None:
            raise SignalsUnavailableError("the signals are not open: open the purgatory first")
        self._number += 1
        number = self._number
        asked = self._asked[number] = asyncio.Queue()
        answers: dict[str, int | str] = {}
        try:
            message = json.dumps([self._name, number, question, argument])
            # This process is among those that it reaches, and leaves it alone.
            expected = await publish(self._server, self._tag, self.channel, message) - 1
            with contextlib.suppress(TimeoutError):
                async with self._server.timeout.limit(ANSWER_S):
                    while len(answers) < expected:
                        answer = await asked.get()
                        answers[answer.asker] = answer.argument
            return list(answers.values())
        except CONNECTION_ERRORS as exc:
            raise SignalsUnavailableError(
                "other processes cannot be asked, as Redis did not reply in "
                f"{self._server.timeout.seconds:g} s ({type(exc).__name__}: {exc})"
            ) from exc
        finally:
            del self._asked[number]

    def tell(self, question: str, argument: str) -> None:
        """Ask the other processes, without waiting for their answers."""
        self._begin(self._publish(self.channel, [self._name, 0, question, argument]))

    async def _handle(self, channel: str, data: bytes) -> None:
        found = _parsed(data)
        if found is None:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "what is no message of another process was published to %r, and is ignored",
                    channel,
                    extra={"action": "signals-malformed"},
                )
            return
        if channel == self._own_channel:
            if found.number in self._asked:
                self._asked[found.number].put_nowait(found)
            return
        if found.asker == self._name or len(self._replies) >= MAX_REPLIES:
            return
        if found.number:
            self._begin(self._reply(found))
        else:
            await self._reply(found)

    async def _reply(self, message: _Message) -> None:
        asker, number, question, argument = message
        answer = self.answers.get(question)
        found: object = 0
        if answer is not None and isinstance(argument, str):
            try:
                found = answer(argument)
                if not isinstance(found, int):
                    found = await found
            except Exception as exc:
                # The asker goes on without it. What is wrong with an argument needs no traceback:
                # there may be many.
                logger.error(
                    "could not answer %r of another process (%s)",
                    question,
                    type(exc).__name__,
                    exc_info=None if isinstance(exc, ValueError) else exc,
                    extra={"action": "no-answer"},
                )
                found = 0
        if number:
            await self._publish(f"{self.channel}:{asker}", [self._name, number, question, found])

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._replies.add(task)
        task.add_done_callback(self._replies.discard)

    async def _publish(self, channel: str, message: list[object]) -> None:
        with contextlib.suppress(*CONNECTION_ERRORS):
            async with self._server.timeout.limit(), self._publishing:
                text = json.dumps(message)
                if len(text) > MAX_MESSAGE:
                    text = json.dumps([*message[:3], 0])
                await publish(self._server, self._tag, channel, text)


def _parsed(data: bytes) -> _Message | None:
    """Return a message of another process; None for any other text."""
    match = None if len(data) > MAX_MESSAGE else _MESSAGE.fullmatch(data)
    if match is None:
        return None
    asker, number, question, argument = match.groups()
    try:
        return _Message(asker.decode(), int(number), json.loads(question), json.loads(argument))
    except ValueError:
        return None
