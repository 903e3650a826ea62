"""Signals as an async iterator, for streams of the application's own endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Depends, Request

from purgatory.fastapi.dependencies import Park, get_park
from purgatory.status import Status

# Seconds of one wait: another one follows.
_WAIT_S: Final = 3600.0


class FollowedSignal(NamedTuple):
    """One signal of a followed key."""

    key: str
    value: Any
    """The JSON value that the key was fired with."""
    cursor: str
    """Where to resume after it: the id of its event."""


class Follow:
    """Follows keys on behalf of the request that it was made for."""

    def __init__(self, park: Park, last_event_id: str | None) -> None:
        """Resume after `last_event_id`, if the request has one."""
        self._park = park
        self._last_event_id = last_event_id

    async def __call__(
        self, *keys: str, cursor: str | None = None
    ) -> AsyncIterator[FollowedSignal]:
        """Yield the signals of `keys`, each key's in order, without a gap.

        It begins after the header `Last-Event-ID` of the request, or else after `cursor`, or else
        now. The iterator ends when the process drains, or a key is dropped, so that the response
        is complete and its client reconnects; it is cancelled when the client leaves.

        A signal is read from the history when the stream is ready for it: a slow client costs no
        queue. Raises CursorExpiredError once that is too late, BadCursorError for a
        `Last-Event-ID` that is not a cursor, and what `Purgatory.park` raises.
        """
        cursor = self._last_event_id or cursor or self._park.cursor(*keys)
        # Also while the stream sends what it was given.
        with self._park.counted():
            while True:
                outcome = await self._park.until_outcome(keys, _WAIT_S, None, cursor)
                cursor = outcome.cursor
                if outcome.key is not None and outcome:
                    yield FollowedSignal(outcome.key, outcome.value, cursor)
                elif outcome.status is not Status.EXPIRED:
                    return


async def get_follow(request: Request, park: Annotated[Park, Depends(get_park)]) -> Follow:
    """Return the function that follows keys for this request. For `Depends`.

    Raises LimitReachedError if the client has too many parked requests: a stream cannot, later.
    """
    park.check_client()
    return Follow(park, request.headers.get("last-event-id"))


FollowDep = Annotated[Follow, Depends(get_follow)]
"""Follows keys, as a parameter of an endpoint: `async for signal in follow(key)`."""
