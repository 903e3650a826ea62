"""Steps of many callers in one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from purgatory.group_commit import GroupCommit

# Of one round trip: the server serves no other client meanwhile.
MAX_STEPS = 1_000
MAX_BYTES = 4 * 1024 * 1024
_BYTES_OF_STEP = MAX_BYTES // MAX_STEPS


class StepBatches:
    """A `GroupCommit` of lists of steps; `run` returns a list of results."""

    def __init__(self, send: Callable[[list[bytes]], Awaitable[list[bytes]]]) -> None:
        """Prepare; `send` runs steps in order and returns their results in order."""
        self._send = send
        self._commit: GroupCommit[Sequence[bytes]] = GroupCommit(
            self._send_batch, weigh=_weight, max_weight=MAX_STEPS
        )

    def run(self, steps: Sequence[bytes]) -> Awaitable[list[bytes]]:
        """Return the results of `steps`; raise what `send` raises."""
        if 0 < len(steps) <= MAX_STEPS:
            return self._commit.submit(steps)
        return self._run_chunks(steps)

    async def _run_chunks(self, steps: Sequence[bytes]) -> list[bytes]:
        chunks = [steps[at : at + MAX_STEPS] for at in range(0, len(steps), MAX_STEPS)]
        # Queued together: they stay in order, and callers that come meanwhile wait behind them.
        several = await asyncio.gather(*map(self._commit.submit, chunks))
        return [result for results in several for result in results]

    async def drain(self) -> None:
        """Wait for the round trip under way."""
        await self._commit.join()

    async def _send_batch(self, batch: list[Sequence[bytes]]) -> list[list[bytes]]:
        if len(batch) == 1:
            return [await self._send(list(batch[0]))]
        results = iter(await self._send([step for steps in batch for step in steps]))
        return [list(islice(results, len(steps))) for steps in batch]


def _weight(steps: Sequence[bytes]) -> int:
    """Return the number of steps; more, if they are large."""
    return max(len(steps), sum(map(len, steps)) // _BYTES_OF_STEP)
