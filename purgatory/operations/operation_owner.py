"""The owner of an operation, as the operation sees it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class OperationOwner:
    """The purgatory of an operation, which the operation leaves when it ends.

    A class of its own, because compiled classes cannot import each other mutually:
    DelayedOperationPurgatory imports DelayedOperation, which imports this.
    """

    __slots__ = ("current_key",)

    # The key that is being checked, from which an operation reads what completed it.
    current_key: Hashable | None

    def _unwatch(self, operation: Any) -> None:
        """Remove `operation` from every key, and count its outcome if it has one."""
        raise NotImplementedError(f"{type(self).__name__} does not define _unwatch()")
