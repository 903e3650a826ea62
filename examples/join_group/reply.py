"""The outcome that a parked request waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

ResponseBody = TypeVar("ResponseBody")


class Reply(Generic[ResponseBody]):
    """The outcome of one request of one member: a response or an error, set once.

    The endpoint parks its request under `key` until `is_complete()`; completing it checks that key.
    So the request is an operation of the purgatory, which handles drain and disconnect.
    """

    # Invariant: _response is None or _error is None
    __slots__ = ("_check", "_error", "_response", "group_id", "key", "member_id")

    def __init__(
        self, group_id: str, member_id: str, *, key: str, check: Callable[[str], object]
    ) -> None:
        """Create an incomplete reply to a member."""
        self.group_id = group_id
        self.member_id = member_id
        self.key = key
        self._check = check
        self._response: ResponseBody | None = None
        self._error: Exception | None = None

    def is_complete(self) -> bool:
        """Return True iff there is a response or an error."""
        return self._response is not None or self._error is not None

    def complete(self, response: ResponseBody) -> None:
        """Set the response, unless the reply is complete."""
        if not self.is_complete():
            self._response = response
            self._check(self.key)

    def fail(self, error: Exception) -> None:
        """Set the error, unless the reply is complete."""
        if not self.is_complete():
            self._error = error
            self._check(self.key)

    def result(self) -> ResponseBody:
        """Return the response, or raise the error; raise RuntimeError if incomplete."""
        if self._error is not None:
            raise self._error
        if self._response is None:
            raise RuntimeError(f"{self.key} is not complete yet")
        return self._response
