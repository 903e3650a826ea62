"""Settings of waits over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from purgatory.fastapi.http.bounds.byte_budget import DEFAULT_TIMEOUT
from purgatory.fastapi.http.bounds.incoming_requests import DEFAULT_MAX_BYTES
from purgatory.fastapi.http.bounds.unread_responses import DEFAULT_MAX_UNREAD_BYTES
from purgatory.timer.seconds import SecondsField
from purgatory.wrong_type import check_numbers

DEFAULT_WAIT: Final = 25.0


# Without slots, for SecondsField.
@dataclass(frozen=True, kw_only=True)
class WaitSettings:
    """Bounds on requests over HTTP: how long they are parked or received, and how many."""

    default_wait: SecondsField = SecondsField(DEFAULT_WAIT)
    """Seconds, if the client names none: 25, or `max_wait` if that is less."""
    max_wait: SecondsField = SecondsField(55.0)
    max_stream: SecondsField = SecondsField(3600.0)
    """Seconds until a stream of events ends; its client reconnects, and is authorized again."""
    heartbeat: SecondsField = SecondsField(15.0)
    """Seconds between comments in a stream: less than the idle timeouts of proxies."""
    max_parked_per_client: int = 100_000
    """Parked requests of one client: a token or identity, or else an address.

    With `install`, also those to endpoints of the application, whose clients `client=` names.
    """
    request_timeout: SecondsField = SecondsField(DEFAULT_TIMEOUT)
    """Seconds from the first byte of a request to its last; later ones are refused (408).

    Applies to bodies, and with `ParkingProtocol` to the heads of all requests; of several routers,
    the one that is included first decides for heads. So it is with `max_incomplete_bytes`.
    """
    max_incomplete_bytes: int = DEFAULT_MAX_BYTES
    """Bytes of all incomplete requests together; beyond, the oldest of them are refused (503)."""
    max_response_bytes: int = 1024 * 1024
    """Bytes of signals in the response to a wait, about; there is at least one signal. `more` says
    that others follow, after the cursor of the response."""
    response_timeout: SecondsField = SecondsField(DEFAULT_TIMEOUT)
    """Seconds in which a client must read some of its response, or its connection is closed.

    Applies to long responses of this router, and with `ParkingProtocol` to all responses, as
    `request_timeout` to heads. So it is with `max_unread_bytes`.
    """
    max_unread_bytes: int = DEFAULT_MAX_UNREAD_BYTES
    """Bytes of all responses that are not read yet; beyond, the oldest connections are closed."""

    def __post_init__(self) -> None:
        """Raise ValueError unless 0 <= default_wait <= max_wait, TypeError for no number."""
        check_numbers(self)
        if self.default_wait == DEFAULT_WAIT and self.max_wait >= 0:
            object.__setattr__(self, "default_wait", min(DEFAULT_WAIT, self.max_wait))
        if not 0 <= self.default_wait <= self.max_wait:
            raise ValueError(
                f"default_wait is {self.default_wait!r} and max_wait {self.max_wait!r}; needed: "
                "0 <= default_wait <= max_wait; lower default_wait or raise max_wait"
            )
        if self.max_parked_per_client < 1:
            raise ValueError(
                f"max_parked_per_client is {self.max_parked_per_client!r}; the minimum is 1"
            )
        for name in ("heartbeat", "max_stream", "request_timeout", "response_timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; needed: a number of seconds above 0"
                )
        for name in ("max_incomplete_bytes", "max_response_bytes", "max_unread_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; the minimum is 1")
