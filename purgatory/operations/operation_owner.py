"""The owner of an operation, as the operation sees it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextvars import Context, copy_context
from typing import Any


class OperationOwner:
    """The purgatory of an operation, which the operation leaves when it ends.

    A class of its own, because compiled classes cannot import each other mutually:
    DelayedOperationPurgatory imports DelayedOperation, which imports this.
    """

    __slots__ = ("current_key", "ended_in", "keeps_ended_in")

    # The key that is being checked, from which an operation reads what completed it.
    current_key: Hashable | None
    # The context of the caller that ends an operation, which runs in its own: for listeners.
    # Kept only if one of them needs it.
    ended_in: Context | None
    keeps_ended_in: bool

    def _enter(
        self, context: Context, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        """Return `function(*arguments)`, called in a copy of `context`, with `ended_in` set."""
        outer, self.ended_in = self.ended_in, copy_context()
        try:
            return context.copy().run(function, *arguments)
        finally:
            self.ended_in = outer

    def _unwatch(self, operation: Any) -> None:
        """Remove `operation` from every key, and count its outcome if it has one."""
        raise NotImplementedError(f"{type(self).__name__} does not define _unwatch()")
