"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import httpx

from purgatory.client.flows import Flow, Flows
from purgatory.client.requests import (
    DEFAULT_PREFIX,
    Command,
    Emit,
    Read,
    Request,
    Result,
    Sleep,
    auth_headers,
    base_url,
    reply_of,
    send_arguments,
)
from purgatory.client.values import Fired, Job, Signal, WaitResult
from purgatory.timer import Clock, SystemClock
from purgatory.timer.clock import Seconds, seconds_of

if TYPE_CHECKING:
    from purgatory.jobs.model.spec import JobOptions

T = TypeVar("T")


class AsyncClient:
    """A client of one server, for one event loop: `async with AsyncClient(url) as client`.

    Every method repeats its request while the server cannot be reached, for `retry_for` seconds,
    and does so as one request: what fires or defers is done once. Raises ServerUnavailableError
    after that, RefusedError for a request that the server refuses, and errors of the library, such
    as BadCursorError, where they say more.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        retry_for: Seconds = 30.0,
        http: httpx.AsyncClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Reach the server at `url`; `http` is a client of httpx of your own, which you close.

        `clock` is the one of a test in virtual time.
        """
        self._base = base_url(url, prefix)
        self._flows = Flows(retry_for=seconds_of(retry_for), clock=clock or SystemClock())
        self._headers = auth_headers(token)
        self._owns_http = http is None
        # A stream or a wait holds its connection: httpx's limit of 100 would be reached soon.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._http = httpx.AsyncClient(limits=limits) if http is None else http

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close all connections."""
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._owns_http:
            await self._http.aclose()

    async def wait(
        self,
        *keys: str,
        timeout: Seconds = 25.0,
        cursor: str | Mapping[str, str | None] | None = None,
    ) -> WaitResult:
        """Wait until one of `keys` fires, for `timeout` seconds; a result without signals is false.

        `cursor` is from an earlier result (`result.cursors`), for all keys or one for each: what
        fired since counts. "0" is from the earliest stored signal; without it, from now.
        Raises CursorExpiredError, and InvalidTimeoutError unless `timeout` is finite and >= 0.
        """
        return await self._run(self._flows.wait(keys, timeout, cursor))

    def follow(
        self, *keys: str, cursor: str | Mapping[str, str | None] | None = None
    ) -> AsyncGenerator[Signal, None]:
        """Yield every signal of `keys` once, each key's in order, for as long as the server is.

        `cursor` is that of a signal of an earlier `follow` of these keys; "0" is the earliest
        stored position of all of them; without it, from now. The `cursors` of a wait for one key
        are accepted, too. It reconnects by itself, with backoff, when connections break and
        processes end. The iterator ends if a key is deleted.

        Raises CursorExpiredError when signals were lost: read the state again, then follow from its
        `head`, or from its `earliest`. Raises ValueError at once if several keys have different
        cursors: a stream has one for all of them.
        """
        return self._stream(self._flows.follow(keys, cursor))

    async def fire(
        self, key: str, value: Any = None, *, idempotency_key: str | None = None
    ) -> Fired:
        """Fire `key` with any JSON value, once: repeats have the same Idempotency-Key."""
        return await self._run(self._flows.fire(key, value, idempotency_key))

    async def defer(
        self,
        handler: str,
        payload: Any = None,
        *,
        since: str | Mapping[str, str] | None = None,
        **options: Unpack[JobOptions],
    ) -> AsyncJobHandle:
        """Add a job, once, `delay` seconds from now or `at` a time; see `Purgatory.defer`."""
        job = await self._run(self._flows.defer(handler, payload, {"since": since, **options}))
        return AsyncJobHandle(self, job.id, job)

    def job(self, job_id: str) -> AsyncJobHandle:
        """Return the handle of a job by its id, without a request."""
        return AsyncJobHandle(self, job_id)

    def jobs(
        self,
        *,
        state: str | None = None,
        handler: str | None = None,
        key: str | None = None,
        concurrency_key: str | None = None,
        blocked: bool = False,
    ) -> AsyncGenerator[Job, None]:
        """Yield jobs, approximately newest first, without their payloads.

        `blocked`: only jobs that are due and wait for a slot of their handler, or for the end of a
        pause.
        """
        filters = {"state": state, "handler": handler, "key": key}
        filters |= {"concurrency_key": concurrency_key, "blocked": "true" if blocked else None}
        return self._stream(self._flows.jobs(filters))

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Any:
        """Return the JSON of an endpoint without a method here; `path` is below the prefix.

        Percent-encode what is put into `path`. It is repeated as all requests are: call only what
        may be done twice.
        """
        return (await self._run(self._flows.call(method, path, query or {}, body))).json()

    async def _run(self, flow: Flow[T]) -> T:
        result: Result = None
        async with AsyncExitStack() as stack:
            while True:
                try:
                    command = flow.send(result)
                except StopIteration as finished:
                    value: T = finished.value
                    return value
                result = await self._result(command, stack)

    async def _stream(self, flow: Flow[None]) -> AsyncGenerator[Any, None]:
        result: Result = None
        async with AsyncExitStack() as stack:
            while True:
                try:
                    command = flow.send(result)
                except StopIteration:
                    return
                result = await self._result(command, stack)
                if isinstance(command, Emit):
                    yield command.value

    async def _result(self, command: Command, stack: AsyncExitStack) -> Result:
        """Carry out a command; `stack` closes the response at the next request, or at the end."""
        try:
            if isinstance(command, Sleep):
                await asyncio.sleep(command.seconds)
            elif isinstance(command, Read):
                return await anext(command.pieces, b"")
            elif isinstance(command, Request):
                await stack.aclose()
                arguments = send_arguments(command, self._base, self._headers)
                request = self._http.build_request(**arguments)
                response = await self._http.send(request, stream=True)
                stack.push_async_callback(response.aclose)
                if command.is_stream and response.status_code == 200:
                    return reply_of(response, b"", response.aiter_raw())
                return reply_of(response, await response.aread())
        except httpx.TransportError as exc:
            return exc
        return None


class AsyncJobHandle:
    """A job by its id. No request until a method is called, and the job need not exist.

    Every method raises JobNotFoundError if it does not.
    """

    def __init__(self, client: AsyncClient, job_id: str, job: Job | None = None) -> None:
        """Name a job. Called by `AsyncClient.defer` and `AsyncClient.job`."""
        self._client = client
        self.id = job_id
        self.job = job
        """The job as it was deferred; None for one that was named by its id."""

    def __repr__(self) -> str:
        """Return the kind of handle and the id."""
        return f"<AsyncJobHandle {self.id!r}>"

    async def get(self) -> Job:
        """Return the job as it is now."""
        return await self._client._run(self._client._flows.job(self.id))

    async def cancel(self) -> Job:
        """Cancel the job; raise RefusedError (`job-decided`) if it runs or has run."""
        return await self._client._run(self._client._flows.job(self.id, "DELETE"))

    async def wait(self, timeout: Seconds | None = None) -> Job:
        """Return the job once it is done, failed or cancelled; raise TimeoutError."""
        return await self._client._run(self._client._flows.job_end(self.id, timeout))
