"""The trace context of fires and jobs: how it travels to the process that continues them."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Final, Protocol

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class TracePropagation(Protocol):
    """What reads and restores the current trace context; without one, none is sent or stored."""

    def current(self) -> str | None:
        """Return the current trace context as a W3C `traceparent`; None outside any trace."""
        ...

    def restore(self, traceparent: str | None) -> AbstractContextManager[object]:
        """Return a context in which what a process was sent is the current trace context.

        With None, it is outside any trace.
        """
        ...


def checked_traceparent(text: str | None) -> str | None:
    """Return `text` if it is a `traceparent` of version 00, which has 55 characters; else None.

    As W3C Trace Context 3.2.2 has it: what is invalid is treated as if it were not there.
    """
    return text if text is not None and _TRACEPARENT.fullmatch(text) else None


def current_traceparent(propagation: TracePropagation | None) -> str | None:
    """Return what to send or store with a fire or a job; None if it has no trace context."""
    return None if propagation is None else checked_traceparent(propagation.current())
