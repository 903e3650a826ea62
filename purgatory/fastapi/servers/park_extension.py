"""What a server offers to an application whose request waits: to keep it by itself.

An ASGI extension: `scope["extensions"]["purgatory.park"]["let_go"]` is a function. An application
that has not begun to answer calls it, in the request's own task, with the scope, its `send` and the
operation for which the request waits. Where it returns a function the application returns too,
without an answer; and that function, called with a response of Starlette's at any time from then
on, answers the request. A client that leaves cancels the operation. Where it returns None the
request cannot be let go, and all is as if there were no extension.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Scope, Send

from purgatory.operations.delayed_operation import DelayedOperation

EXTENSION: Final = "purgatory.park"

Reply = Callable[[Response], object]
LetGo = Callable[[Scope, Send, DelayedOperation], Reply | None]

# Their wrappers note that the answer has begun, and do no more.
_OBSERVERS: Final = frozenset({"starlette._exception_handler", "starlette.middleware.errors"})


class LetGoRequest:
    """The operation for which a request waits that was let go, as the protocol sees it."""

    __slots__ = ("_operation",)

    def __init__(self, operation: DelayedOperation) -> None:
        """Wait for `operation`."""
        self._operation = operation

    def expire(self) -> None:
        """End the wait as if it were over. Idempotent."""
        self._operation.run()

    def leave(self) -> None:
        """End the wait: the client has gone. Idempotent."""
        self._operation.cancel()


def is_unwrapped(send: Any, own: Any) -> bool:
    """Return True iff nothing that would see the answer is between `send` and the server's own.

    Middleware and routes that wrap `send` do something with the answer, and have to get it.
    """
    while send != own:
        if not isinstance(send, FunctionType) or send.__module__ not in _OBSERVERS:
            return False
        names = send.__code__.co_freevars
        if "send" not in names:
            return False
        assert send.__closure__ is not None
        send = send.__closure__[names.index("send")].cell_contents
    return True
