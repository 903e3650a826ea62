"""Parking in endpoints of the application: dependencies, and responses that are sent later."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Depends, HTTPException, Request
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from purgatory.errors import CursorExpiredError, LimitReachedError, WrongThreadError
from purgatory.event_loop.parked_operations import cancelling_on_failure
from purgatory.fastapi.http.asgi import (
    CLIENT_CLOSED_REQUEST,
    EXTENSION,
    RELEASE,
    AsgiConnection,
    DisconnectListener,
    Respond,
    may_have_body,
    send_from_outside,
)
from purgatory.fastapi.http.bounds import UnreadResponses, read_body
from purgatory.fastapi.http.requests import Access, Action
from purgatory.fastapi.http.responses import Problem, draining_problem, retry_after
from purgatory.fastapi.routing.endpoints import AdmittingEndpoint
from purgatory.fastapi.routing.routes import (
    cache_body,
    cached_body,
    end_response,
    is_body_read,
    on_endpoint_end,
)
from purgatory.fastapi.watch.routes import WatchEndpoint, split_keys
from purgatory.fastapi.watch.settings import installed_limit
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.outcome import Outcome, Status
from purgatory.purgatory import Purgatory
from purgatory.timer.clock import Seconds, seconds_of

logger = logging.getLogger("purgatory.fastapi")


async def get_accesses(request: Request) -> list[Access]:
    """Return the access that a request to our endpoints needs, for each key. For `Depends`.

    The list is empty for the description of a problem, which anyone may read.
    Raises Problem if a body that names the keys is invalid.
    """
    endpoint = request.scope["route"].endpoint
    if not isinstance(endpoint, AdmittingEndpoint) or endpoint.access is None:
        return []
    access, action = endpoint.access, endpoint.access.action
    key = request.path_params.get("key")
    if key is not None:
        return [Access(action, key)]
    if "id" in request.path_params and action in (Action.DEFER, Action.OPERATE):
        return [Access(action, job=request.path_params["id"])]
    if isinstance(endpoint, WatchEndpoint) and request.method == "GET":
        maximum = endpoint.context.purgatory.limits.max_keys_per_operation
        keys, _ = split_keys(request.scope["query_string"], maximum)
        return [Access(action, key) for key in keys]
    if request.method != "POST" or not endpoint.max_body:
        return [access]
    # The keys are in the body: parsed as the endpoint parses it, so that both see the same.
    if cached_body(request) is None:
        # Request.body() has no bound: it is to return what is read here.
        limit, incoming = endpoint.max_body, endpoint.context.incoming
        cache_body(request, await read_body(request.scope, request.receive, limit, incoming))
    body = await request.body()
    if endpoint.accesses_of_lines is not None:
        return [access, *await endpoint.accesses_of_lines(body)]
    assert endpoint.body is not None
    parsed = await endpoint.body.parse_in_turns(body)
    if hasattr(parsed, "accesses"):
        return [access, *parsed.accesses()]
    if action is Action.WAIT:
        return [Access(action, key) for key in parsed.keys]
    return [Access(action, item.key) for item in parsed]


AccessesDep = Annotated[list[Access], Depends(get_accesses)]
"""The access that a request needs, as a parameter of an `authorize` of your own."""


# A stream whose response is complete, or whose client left, is cancelled by what sends it, within
# a turn or two of the event loop; an exception in it would be a traceback in the log. If nothing
# does, a stream whose client left is cancelled by itself, and any other gets the exception.
CANCELLATION_S: Final = 1.0


# Neither awaits anything, but FastAPI would run plain functions in one of its 40 threads.
async def get_purgatory(connection: HTTPConnection) -> Purgatory:
    """Return the purgatory that was installed in the application. For `Depends`."""
    purgatory = getattr(connection.app.state, "purgatory", None) or getattr(
        connection.state, "purgatory", None
    )
    if not isinstance(purgatory, Purgatory):
        raise RuntimeError(
            "no purgatory is installed in this application: call "
            "purgatory.fastapi.install(app, purgatory), or set app.state.purgatory"
        )
    return purgatory


class Park:
    """Parks the request that it was made for; called like `Purgatory.park`."""

    def __init__(self, purgatory: Purgatory, request: Request) -> None:
        """Park `request` in `purgatory`."""
        self.purgatory = purgatory
        self._request = request
        self._thread_id = threading.get_ident()
        # Its response is being sent: what parks now is a stream.
        self._is_streaming = False
        # How often it waits now; its client is counted once.
        self._waits = 0
        self._client = ""
        on_endpoint_end(request.scope, self._begin_stream)

    def cursor(self, *keys: str) -> str:
        """Return the cursor of now, to wait from after a read; see `Purgatory.cursor`."""
        return self.purgatory.cursor(*keys)

    # Not async: in a thread it has to fail at once, not in a coroutine that is never awaited.
    def __call__(
        self,
        *keys: str,
        timeout: Seconds,
        until: Callable[[], object] | None = None,
        cursor: str | Mapping[str, str | None] | None = None,
    ) -> Coroutine[Any, Any, Outcome]:
        """Wait until one of `keys` fires or `timeout` seconds have passed, as `Purgatory.park`.

        The timeout is not limited by `WaitSettings`, which is for the endpoints of `install`. Limit
        a timeout that comes from a client: proxies close connections that are idle for a minute or
        so.

        Raises LimitReachedError if the client has too many parked requests, and HTTPException when
        it leaves (499, which nobody reads), when the process drains, and when shared signals were
        lost during a wait without a cursor (503 with Retry-After). With a cursor, the last is
        CursorExpiredError. On a drain, and at the limit of its client, a stream, such as
        server-sent events, ends instead, as if the client had left: its response is completed, and
        the generator cancelled. `purgatory.park` does neither, and is for background tasks, which
        run once the client has its response.

        Raises WrongThreadError, at once, in a thread, such as that of a `def` endpoint: there, call
        `anyio.from_thread.run(partial(park, "key", timeout=25))`.
        """
        if threading.get_ident() != self._thread_id:
            raise WrongThreadError(
                "park was called in a thread, as that of a plain `def` endpoint is: write "
                "`async def` and `await park(...)`, or, in the thread, "
                "`anyio.from_thread.run(partial(park, key, timeout=...))`"
            )
        return self._park(keys, seconds_of(timeout), until, cursor)

    async def _park(
        self,
        keys: tuple[str, ...],
        timeout: float,
        until: Callable[[], object] | None,
        cursor: str | Mapping[str, str | None] | None,
    ) -> Outcome:
        try:
            outcome = await self.until_outcome(keys, timeout, until, cursor)
        except CursorExpiredError as exc:
            if cursor is not None:
                raise
            # The server has lost signals. Nobody gave a cursor that could be too old.
            raise Problem(
                "signals-unavailable",
                "signals were lost while this request waited: make it again",
                headers=retry_after(),
            ) from exc
        except LimitReachedError:
            await self._end_stream()
            raise
        if outcome.status is Status.DRAINED:
            await self._end_stream()
            raise draining_problem()
        return outcome

    async def _end_stream(self) -> None:
        """Complete the response of a stream, which is cancelled then."""
        if self._is_streaming and await end_response(self._request):
            await asyncio.sleep(CANCELLATION_S)

    def check_client(self) -> None:
        """Raise LimitReachedError if the client has too many parked requests for another one."""
        limit = installed_limit(self._request.scope)
        if limit is not None:
            limit.check(limit.key_of(self._request.scope))

    async def until_outcome(
        self,
        keys: tuple[str, ...],
        timeout: float,
        until: Callable[[], object] | None,
        cursor: str | Mapping[str, str | None] | None,
    ) -> Outcome:
        """Return the outcome of `park`, also if the process drains.

        Raises HTTPException when the client leaves, and LimitReachedError if it waits too often.
        """
        with self.counted() if timeout > 0 else nullcontext():
            if not self._is_streaming:
                await self._read_body()
            parking = self.purgatory.park(*keys, timeout=timeout, until=until, cursor=cursor)
            if not is_body_read(self._request):
                # What sends the stream reads the body meanwhile, and cancels this if the client
                # leaves.
                return await parking
            outcome = await _unless_client_leaves(self._request.receive, parking)
        if outcome is None:
            if self._is_streaming:
                await asyncio.sleep(CANCELLATION_S)
                # hypercorn says once that the client has left, which what sends the stream did not
                # hear then: it ends without an error if this is cancelled.
                raise asyncio.CancelledError
            raise HTTPException(CLIENT_CLOSED_REQUEST, "the client left, or has its response")
        return outcome

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a parked request of the client meanwhile; raise LimitReachedError."""
        limit = installed_limit(self._request.scope)
        if limit is None:
            yield
            return
        if not self._waits:
            self._client = limit.enter(limit.key_of(self._request.scope))
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits:
                limit.leave(self._client)

    def _begin_stream(self) -> None:
        self._is_streaming = True

    async def read_empty_body(self) -> None:
        """Read the body if it is empty; any other is for the endpoint, which may stream it."""
        if not may_have_body(self._request.scope):
            await self._read_body()

    async def _read_body(self) -> None:
        # Otherwise the body would hide the client's leaving.
        if is_body_read(self._request):
            return
        try:
            await self._request.body()
        except ClientDisconnect:
            raise HTTPException(CLIENT_CLOSED_REQUEST, "the client left") from None


async def _unless_client_leaves(
    receive: Receive, parking: Coroutine[Any, Any, Outcome]
) -> Outcome | None:
    """Return the outcome of `parking`; None if the client leaves before.

    `receive()` stays in the task of the request, where middleware expects it.
    """
    listener = DisconnectListener(receive)
    task = asyncio.get_running_loop().create_task(parking)
    task.add_done_callback(lambda _: listener.interrupt())
    try:
        await listener.until_disconnect()
        return task.result() if task.done() else None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def get_park(
    connection: HTTPConnection, purgatory: Annotated[Purgatory, Depends(get_purgatory)]
) -> Park:
    """Return the function that parks this request. For `Depends`."""
    if not isinstance(connection, Request):
        raise RuntimeError(
            "ParkDep parks a request, and this is a WebSocket: take PurgatoryDep, and await "
            "purgatory.park(...)"
        )
    park = Park(purgatory, connection)
    await park.read_empty_body()
    return park


PurgatoryDep = Annotated[Purgatory, Depends(get_purgatory)]
"""The purgatory of the application, as a parameter of an endpoint."""
ParkDep = Annotated[Park, Depends(get_park)]
"""Parks the request of an endpoint, as a parameter of it: `await park(key, timeout=25)`."""

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


class DelayedResponse(Response):
    """Return it from an endpoint to respond when an operation of your own completes.

    `park` is called once, with a function that responds to the request, and returns the operation,
    which it has given to `Purgatory.park_operation`. Completing the operation responds to the
    request, and a client that leaves cancels the operation (`on_cancellation`). The endpoint is
    done by then; so are its dependencies, except those with `yield` that lack `scope="function"`.
    The response is sent in a copy of the request's context (`contextvars`), whoever completes it.

    There is no task and no future for the wait: the request waits inside `receive()`, which returns
    when its client leaves, and also when its response is complete. If the server offers to keep it
    (`scope["extensions"]["purgatory.park"]`, by `ParkingProtocol`), its task and all of its frames
    end, and what is left is the connection and the operation. Not so where clients are counted
    (`max_parked_per_client`): LimitReachedError is a 429 for a client that has too many.
    """

    def __init__(self, park: Callable[[Respond], DelayedOperation]) -> None:
        """Send the first response of the operation that `park` returns.

        A `park` that returns something else, or an operation that is neither parked nor completed,
        fails with TypeError, a 500 to the client. If it fails, the operations that it has parked
        are cancelled.
        """
        super().__init__()
        self._park = park

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Park, and respond now or later; then run the background tasks."""
        limit = installed_limit(scope)
        client = "" if limit is None else limit.enter(limit.key_of(scope))
        try:
            waiting = _WaitingRequest(scope, receive, send)
            with cancelling_on_failure():
                operation = self._park(waiting.send)
                if not isinstance(operation, DelayedOperation):
                    raise waiting.refused(operation)
                if not operation.keys and not operation.is_completed:
                    # It is not parked: nothing would ever end it.
                    raise waiting.refused(operation)
            # What follows the response is for this task: background tasks, and counting less.
            if self.background is None and not client and waiting.release(operation):
                return
            await waiting.wait(operation)
        finally:
            if limit is not None:
                limit.leave(client)
        if self.background is not None:
            await self.background()


# Counts nothing: a response of Starlette's sends itself.
_UNREAD: Final = UnreadResponses()


class _WaitingRequest(AsgiConnection):
    """One request, whose response is one of Starlette's."""

    __slots__ = ("_context", "_early", "_end", "_is_done", "_operation", "_released")

    _operation: DelayedOperation

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send, _UNREAD)
        # The operation has one of its own, but may be anywhere when it responds.
        self._context = copy_context()
        # True once there is a response, or the client has left.
        self._is_done = False
        # A response before the task waits, which is for the task to send.
        self._early: Response | None = None
        # Set once the client has left or has its response, for a response that listens.
        self._end: asyncio.Event | None = None
        # Responds to a request that was released.
        self._released: Respond | None = None

    def send(self, response: Response) -> None:
        """Respond to the request, unless that was done or its client has left."""
        if self._is_done:
            return
        self._is_done = True
        if self._released is not None:
            self._context.run(self._released, response)
        elif self._task is None:
            self._early = response
        else:
            self._context.run(self._send_from_outside, response)

    def _send_from_outside(self, response: Response) -> None:
        is_plain = type(response).__call__ is Response.__call__ and response.background is None
        if not is_plain:
            self._end = asyncio.Event()
        # The messages are for this request's task, and some servers have one disconnect for all.
        responding = response(self._scope, self._until_end, self._send)
        # If it fails, nothing else ends the request's task. One that is not plain may depend on
        # the task it is in.
        self._work = send_from_outside(
            self._send, responding, self.interrupt, needs_task=not is_plain
        )

    def refused(self, returned: object) -> TypeError:
        """End without a response, and return why; what the operation responds is ignored."""
        self._is_done = True
        if isinstance(returned, Coroutine):
            returned.close()
            return TypeError("park is an async function: DelayedResponse needs a plain one")
        text = repr(returned)[:100]
        if isinstance(returned, DelayedOperation):
            return TypeError(
                f"park returned {text}, which is not parked: give it to park_operation before you "
                "return it"
            )
        return TypeError(
            f"park returned {text}, not a DelayedOperation: return the one that you gave to "
            "park_operation"
        )

    def release(self, operation: DelayedOperation) -> bool:
        """Leave the request to the server, if it offers that; return True iff it keeps it."""
        extension = self._scope.get("extensions", {}).get(EXTENSION)
        if extension is None or self._is_done:
            return False
        self._released = extension[RELEASE](self._scope, self._send, operation)
        if self._released is None:
            return False
        del self._scope, self._receive, self._send
        return True

    async def wait(self, operation: DelayedOperation) -> None:
        """Wait in `receive()` until the request has its response, or its client has left."""
        self._operation = operation
        if self._early is not None:
            self._work = self._early(self._scope, self._receive, self._send)
        try:
            await self.served(self)
        finally:
            self.abandon()

    def abandon(self) -> bool:
        """End the wait; return True iff there is no response."""
        # First: what the operation responds as it is cancelled is for nobody.
        was_pending, self._is_done = not self._is_done, True
        self._operation.abandon()
        if self._end is not None:
            self._end.set()
        return was_pending

    async def _until_end(self) -> Message:
        assert self._end is not None
        await self._end.wait()
        return {"type": "http.disconnect"}
