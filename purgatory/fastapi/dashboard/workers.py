"""The worker of one router, and the others that share its signals."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable
from functools import cached_property
from secrets import token_hex
from typing import Final, TypeVar

from pydantic import TypeAdapter

from purgatory.purgatory import Purgatory
from purgatory.turn_budget import TurnBudget

logger = logging.getLogger("purgatory.dashboard")

# Bytes of the answers to one question, together.
_MAX_ANSWERS: Final = 8 * 1024 * 1024

Answer = TypeVar("Answer")


class Workers:
    """The names of this worker, and questions to the others, about what only they know.

    The names are made on first use: a server may fork after the application was made.
    """

    def __init__(self, purgatory: Purgatory, prefix: str) -> None:
        """Ask those that share the signals of `purgatory`, with the endpoints under `prefix`."""
        self._prefix = prefix
        self._shared = purgatory.shared_signals

    @cached_property
    def name(self) -> str:
        """The host and the process id, for people."""
        return f"{socket.gethostname()}:{os.getpid()}"

    @cached_property
    def token(self) -> str:
        """Twelve hexadecimal digits that no other worker has."""
        return token_hex(6)

    def answer_with(self, question: str, answer: Callable[[str], Awaitable[str]]) -> None:
        """Call `answer` with the argument whenever another worker asks."""
        if self._shared is not None:
            self._shared.peers.text_answers[f"{question} {self._prefix}"] = answer

    async def ask(
        self, question: str, argument: str, adapter: TypeAdapter[Answer]
    ) -> tuple[list[Answer], int]:
        """Return the answers of the others, and how many are malformed, which is logged.

        A worker that does not answer within a second is left out, and so is what is more than
        _MAX_ANSWERS. Raises SignalsUnavailableError.
        """
        found: list[Answer] = []
        malformed = 0
        if self._shared is None:
            return found, malformed
        room = _MAX_ANSWERS
        budget = TurnBudget()
        for text in await self._shared.peers.ask_texts(f"{question} {self._prefix}", argument):
            room -= len(text)
            if room < 0:
                break
            try:
                found.append(adapter.validate_json(text, strict=True))
            except ValueError as exc:
                malformed += 1
                logger.warning(
                    "another process sent a malformed answer to %r, which is left out (%s)",
                    question,
                    type(exc).__name__,
                    extra={"action": "peer-malformed"},
                )
            await budget.yield_if_spent()
        return found, malformed
