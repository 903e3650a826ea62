"""One round trip for all who wait for one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

# Of one round trip: the server does nothing else meanwhile.
MAX_STEPS = 1_000
MAX_BYTES = 4 * 1024 * 1024


class GroupCommit:
    """Collects what piled up while the round trip before was under way, and sends it as one.

    Nobody waits for others to come: who is alone is sent at once. Each caller waits for its own
    acknowledgement; one that stops waiting takes nothing from the others. One event loop.
    """

    def __init__(self, send: Callable[[list[bytes]], Awaitable[list[bytes]]]) -> None:
        """`send` does steps in order and returns their results in order."""
        self._send = send
        self._waiting: deque[tuple[Sequence[bytes], asyncio.Future[list[bytes]]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def do(self, steps: Sequence[bytes]) -> list[bytes]:
        """Return the results of `steps`; raise what `send` raises."""
        if len(steps) <= MAX_STEPS:
            return await self._enqueue(steps)
        chunks = [steps[at : at + MAX_STEPS] for at in range(0, len(steps), MAX_STEPS)]
        # Queued together: they stay in order, and whoever comes meanwhile waits behind them.
        several = await asyncio.gather(*(self._enqueue(chunk) for chunk in chunks))
        return [result for results in several for result in results]

    async def drain(self) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _enqueue(self, steps: Sequence[bytes]) -> asyncio.Future[list[bytes]]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[bytes]] = loop.create_future()
        self._waiting.append((steps, future))
        if self._task is None:
            # It begins after whatever else runs in this turn of the loop has asked, too.
            self._task = loop.create_task(self._run())
        return future

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._send_batch()
        finally:
            # Not empty only if the loop is being torn down: nobody waits for ever.
            while self._waiting:
                self._waiting.popleft()[1].cancel()
            self._task = None

    async def _send_batch(self) -> None:
        batch, steps = self._next_batch()
        if not steps:
            return
        try:
            results = await self._send(steps)
        except Exception as exc:
            for _, future in batch:
                if not future.done():
                    future.set_exception(_copy(exc))
            return
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        at = 0
        for part, future in batch:
            if not future.done():
                future.set_result(results[at : at + len(part)])
            at += len(part)

    def _next_batch(
        self,
    ) -> tuple[list[tuple[Sequence[bytes], asyncio.Future[list[bytes]]]], list[bytes]]:
        batch = []
        steps: list[bytes] = []
        size = 0
        while self._waiting:
            part, future = self._waiting[0]
            part_size = sum(map(len, part))
            if steps and (len(steps) + len(part) > MAX_STEPS or size + part_size > MAX_BYTES):
                break
            self._waiting.popleft()
            if future.cancelled():
                continue
            batch.append((part, future))
            steps += part
            size += part_size
        return batch, steps


def _copy(exc: Exception) -> Exception:
    # One for each: raised in several tasks, one exception would collect all their tracebacks.
    try:
        copy = type(exc)(*exc.args)
    except Exception:
        # It is made of something else than it says. Better one for all than nobody told.
        return exc
    copy.__cause__ = exc.__cause__
    return copy
