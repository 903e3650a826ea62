"""What a parked request waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Reply(Generic[Answer]):
    """The answer to one request of one member: given once, an answer or an error, now or later.

    The endpoint parks its request under `key` until `is_answered()`; whoever answers checks that
    key. So the request is one more operation of the purgatory, which knows of drain and disconnect.
    """

    # Invariant: _answer is None or _error is None
    __slots__ = ("_answer", "_check", "_error", "group_id", "key", "member_id")

    def __init__(
        self, group_id: str, member_id: str, *, key: str, check: Callable[[str], object]
    ) -> None:
        """Make a reply to a member that is outstanding."""
        self.group_id = group_id
        self.member_id = member_id
        self.key = key
        self._check = check
        self._answer: Answer | None = None
        self._error: Exception | None = None

    def is_answered(self) -> bool:
        """Return True iff there is an answer or an error."""
        return self._answer is not None or self._error is not None

    def answer(self, answer: Answer) -> None:
        """Answer, unless that is done."""
        if not self.is_answered():
            self._answer = answer
            self._check(self.key)

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless that is done."""
        if not self.is_answered():
            self._error = error
            self._check(self.key)

    def result(self) -> Answer:
        """Return the answer, or raise the error; RuntimeError while it is outstanding."""
        if self._error is not None:
            raise self._error
        if self._answer is None:
            raise RuntimeError(f"{self.key} is not answered yet")
        return self._answer
