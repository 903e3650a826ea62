"""Every way to wait in a request, for the servers on which that is tested."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec

from fastapi import Depends, FastAPI, Response
from fastapi.responses import StreamingResponse

from purgatory import DelayedOperation, Outcome, Purgatory
from purgatory.fastapi import (
    ALLOW_ANYONE,
    DelayedResponse,
    FollowDep,
    LongPollKey,
    LongPollMiddleware,
    ParkDep,
    install,
)
from purgatory.signals import WaitOperation

if find_spec("fastapi.sse"):
    from fastapi.sse import EventSourceResponse, ServerSentEvent

purgatory = Purgatory()
app = FastAPI()
app.add_middleware(LongPollMiddleware, purgatory=purgatory)
install(app, purgatory, authorize=ALLOW_ANYONE)


async def _lines(park: Callable[..., Awaitable[Outcome]], key: str) -> AsyncIterator[bytes]:
    cursor = "0"
    yield b"begun\n"
    while True:
        outcome = await park(key, timeout=50, cursor=cursor)
        cursor = outcome.cursor
        yield f"{outcome.value}\n".encode()


@app.get("/park/{key}")
async def park_in_a_stream(key: str, park: ParkDep) -> StreamingResponse:
    """Stream values with ParkDep."""
    return StreamingResponse(_lines(park, key))


@app.post("/park/{key}")
async def park_without_reading(key: str, park: ParkDep) -> StreamingResponse:
    """Stream values without having read the body, if there is one."""
    return StreamingResponse(_lines(park, key))


if find_spec("fastapi.sse"):

    @app.get("/follow/{key}", response_class=EventSourceResponse)
    async def follow_in_a_stream(key: str, follow: FollowDep) -> AsyncIterator[ServerSentEvent]:
        """Stream values with FollowDep."""
        yield ServerSentEvent(data="begun")
        async for signal in follow(key, cursor="0"):
            yield ServerSentEvent(data=signal.value)


@app.get("/plain/{key}")
async def park_in_an_endpoint(key: str, park: ParkDep) -> StreamingResponse:
    """Park until a value comes, after a wait that is over at once."""
    await park("nothing", timeout=0)
    value = (await park(key, timeout=50, cursor="0")).value
    return StreamingResponse(iter([f"begun\n{value}\n"]))


class _Delayed(WaitOperation):
    __slots__ = ("respond",)

    respond: Callable[[Response], object]

    def on_complete(self) -> None:
        """Respond with a stream of all values."""
        if not self.is_abandoned:
            self.respond(StreamingResponse(_lines(purgatory.park, *self.watched_keys)))


@app.get("/delayed/{key}")
async def respond_later(key: str) -> DelayedResponse:
    """Stream once the first value has come."""

    def park(respond: Callable[[Response], object]) -> DelayedOperation:
        operation = _Delayed(50_000, purgatory.signals, (key,), 0)
        operation.respond = respond
        purgatory.park_operation(operation, [key])
        return operation

    return DelayedResponse(park)


@app.get("/long-poll/{key}", dependencies=[Depends(LongPollKey("{key}"))])
async def stream_of_a_state(key: str, park: ParkDep) -> StreamingResponse:
    """Stream values, from a response that has another tag once there is one."""
    tag = "some" if purgatory.signals.has_after(key, 0, 1) else "none"
    return StreamingResponse(_lines(park, key), headers={"ETag": f'"{tag}"'})
