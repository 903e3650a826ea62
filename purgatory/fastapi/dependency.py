"""Parking from an endpoint of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated

from fastapi import Depends, HTTPException, Request

from purgatory.fastapi.problems import draining
from purgatory.outcome import Outcome
from purgatory.purgatory import Purgatory
from purgatory.status import Status

# nginx's "client closed request": nobody is there to read it.
CLIENT_CLOSED_REQUEST = 499


def get_purgatory(request: Request) -> Purgatory:
    """Return the purgatory that was installed in the application. For `Depends`."""
    purgatory = getattr(request.app.state, "purgatory", None) or getattr(
        request.state, "purgatory", None
    )
    if not isinstance(purgatory, Purgatory):
        raise RuntimeError(
            "no purgatory is installed in this application: call "
            "purgatory.fastapi.install(app, purgatory), or set app.state.purgatory"
        )
    return purgatory


class Park:
    """Parks the request that it was made for; call it as `Purgatory.park` is called."""

    def __init__(self, purgatory: Purgatory, request: Request) -> None:
        """Park `request` in `purgatory`."""
        self.purgatory = purgatory
        self._request = request

    async def __call__(
        self,
        *keys: str,
        timeout: float,
        until: Callable[[], object] | None = None,
        cursor: str | Mapping[str, str | None] | None = None,
    ) -> Outcome:
        """Wait until one of `keys` fires or `timeout` seconds have passed, as `Purgatory.park`.

        Raises HTTPException where the endpoint has nobody to answer, or nothing: when the client
        leaves (499, which nobody reads), at once; and when the process drains (503 with
        Retry-After). `purgatory.park` does neither.
        """
        # Else the body would be taken for the client's leaving, or stand in its way.
        await self._request.body()
        parking = asyncio.ensure_future(
            self.purgatory.park(*keys, timeout=timeout, until=until, cursor=cursor)
        )
        leaving = asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait((parking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not parking.done():
                raise HTTPException(CLIENT_CLOSED_REQUEST, "the client left")
            outcome = parking.result()
        finally:
            for task in (parking, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        if outcome.status is Status.DRAINED:
            problem = draining()
            raise HTTPException(problem.kind.status, problem.detail, headers=problem.headers)
        return outcome

    async def _disconnected(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


def get_park(request: Request, purgatory: Annotated[Purgatory, Depends(get_purgatory)]) -> Park:
    """Return what parks this request. For `Depends`."""
    return Park(purgatory, request)


PurgatoryDep = Annotated[Purgatory, Depends(get_purgatory)]
ParkDep = Annotated[Park, Depends(get_park)]
