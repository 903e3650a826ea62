"""Round trips and transactions: one for many callers, and how long it may take."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, Final, Generic, TypeVar

Request = TypeVar("Request")

CLOSE_S: Final = 0.5
"""How long a process that ends waits for a server: it exits within a second, though that hangs."""
# For what begins after that, such as a release: enough for a server that is there.
_LEAST_S: Final = 0.1


class GroupCommit(Generic[Request]):
    """Runs one batch after another; a batch is what was submitted while the last one was running.

    No request waits for others to join it: a single caller is served at once, and a thousand at the
    same time share a batch. Each waits for its own result; a cancelled caller takes nothing from
    the others. Owners take turns, so that nobody waits for all that another has submitted. One
    event loop.
    """

    # Invariant: sorted(_turns) == sorted(_waiting), and all(_waiting.values()).

    def __init__(
        self,
        run: Callable[[list[Request]], Awaitable[Sequence[Any]]],
        *,
        weigh: Callable[[Request], int],
        max_weight: int,
        owner_of: Callable[[Request], Hashable] = lambda _: None,
    ) -> None:
        """Prepare to `run` batches: it returns a result for each request, or an exception.

        A batch weighs up to `max_weight`, unless it is a single request. Those of one owner, as
        `owner_of` returns it, are run in the order in which they were submitted.
        """
        self._run = run
        self._weigh = weigh
        self._max_weight = max_weight
        self._owner_of = owner_of
        # {owner: its requests}, and the owners in the order of their turns.
        self._waiting: dict[Hashable, deque[tuple[Request, asyncio.Future[Any]]]] = {}
        self._turns: deque[Hashable] = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(self, request: Request) -> asyncio.Future[Any]:
        """Return the future of the result: an exception if that is one, or if `run` raised it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        owner = self._owner_of(request)
        queue = self._waiting.get(owner)
        if queue is None:
            queue = self._waiting[owner] = deque()
            self._turns.append(owner)
        queue.append((request, future))
        if self._task is None:
            # It starts after everything else in this turn of the loop has submitted, too. In an
            # empty context: that of the first caller is none of the others'.
            self._task = loop.create_task(self._work(), name="purgatory-commit", context=Context())
            self._task.add_done_callback(self._end)
        return future

    @property
    def is_busy(self) -> bool:
        """Return True iff a batch is under way, or about to start."""
        return self._task is not None

    async def join(self) -> None:
        """Return once no batch is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        while self._waiting:
            if batch := self._take():
                await self._run_batch(batch)
        self._task = None

    def _end(self, task: asyncio.Task[None]) -> None:
        # Nothing is left to do unless the loop ends and cancels the task, perhaps before its first
        # step, where no `finally` of it would run: then no caller waits for ever.
        if self._task is not task:
            return
        self._task = None
        for queue in self._waiting.values():
            for _, future in queue:
                future.cancel()
        self._waiting.clear()
        self._turns.clear()

    def _take(self) -> list[tuple[Request, asyncio.Future[Any]]]:
        batch: list[tuple[Request, asyncio.Future[Any]]] = []
        weight = 0
        while self._turns:
            queue = self._waiting[self._turns[0]]
            request, future = queue[0]
            # Cancelled before its batch started, it need not run.
            if not future.done():
                weight += self._weigh(request)
                if batch and weight > self._max_weight:
                    break
                batch.append(queue[0])
            queue.popleft()
            if queue:
                self._turns.rotate(-1)
            else:
                del self._waiting[self._turns.popleft()]
        return batch

    async def _run_batch(self, batch: list[tuple[Request, asyncio.Future[Any]]]) -> None:
        try:
            results = await self._run([request for request, _ in batch])
        except Exception as exc:
            results = [exc] if len(batch) == 1 else [_copy(exc) for _ in batch]
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


class RoundTripTimeout:
    """The timeout of round trips, which is shortened once the process ends.

    What is under way then fails as what took too long: a request whose client waits for it would
    keep the process for as long as the server hangs. On one event loop.
    """

    def __init__(self, seconds: float) -> None:
        """Give each round trip `seconds`."""
        self.seconds = seconds
        self._until_s: float | None = None
        self._active: set[asyncio.Timeout] = set()

    @property
    def left_s(self) -> float:
        """What a round trip that begins now may take."""
        if self._until_s is None:
            return self.seconds
        left_s = self._until_s - asyncio.get_running_loop().time()
        return min(self.seconds, max(_LEAST_S, left_s))

    @asynccontextmanager
    async def limit(self, seconds: float | None = None) -> AsyncIterator[asyncio.Timeout]:
        """Raise TimeoutError after `left_s`, or after `seconds` if that is less."""
        left_s = self.left_s if seconds is None else min(seconds, self.left_s)
        async with asyncio.timeout(left_s) as timeout:
            self._active.add(timeout)
            try:
                yield timeout
            finally:
                self._active.discard(timeout)

    def hurry(self) -> None:
        """Leave CLOSE_S to round trips under way, and less to later ones. Idempotent."""
        if self._until_s is None:
            self._until_s = asyncio.get_running_loop().time() + CLOSE_S
        for timeout in self._active:
            until_s = timeout.when()
            if not timeout.expired() and (until_s is None or until_s > self._until_s):
                timeout.reschedule(self._until_s)

    def restart(self) -> None:
        """Give all the time again: the process begins anew."""
        self._until_s = None


def _copy(exc: Exception) -> Exception:
    # One for each: raised in several tasks, one exception would collect all their tracebacks.
    try:
        copy = type(exc)(*exc.args)
    except Exception:
        # Its arguments are not those of its constructor: one exception for all of them.
        return exc
    copy.__cause__ = exc.__cause__
    return copy
