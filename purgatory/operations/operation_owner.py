"""What keeps an operation, as the operation sees it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class OperationOwner:
    """Where an operation waits, and what it leaves when it ends.

    Apart from DelayedOperationPurgatory, which knows the class of operations: compiled classes
    cannot know each other mutually.
    """

    __slots__ = ("checked_key",)

    # The key of the check under way, for operations that ask which one completed them.
    checked_key: Hashable | None

    def _leave(self, operation: Any) -> None:
        """Take `operation` off every key, and count how it ended, if its status says that."""
        raise NotImplementedError(f"{type(self).__name__} does not define _leave()")
