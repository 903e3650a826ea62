"""Notice of other processes that run jobs of the same store, while signals are in memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Final

from purgatory.job_errors import StoreError
from purgatory.jobs.stores.protocol import ListsWorkers

logger = logging.getLogger("purgatory.jobs")

# While another process is at work. Alone, the pause doubles with each look, up to the maximum: one
# that starts later looks as often at first, and notices this one.
LOOK_EVERY_S: Final = 60.0
MAX_PAUSE_S: Final = 3_600.0
# Jobs of one look.
LOOKED_AT: Final = 100
MAX_WORKERS: Final = 100
_LEAST_OVERLAP_MS: Final = 60_000


def overlap_ms(*, lease_ms: int, grace_ms: int) -> int:
    """Return for how long a process that is replaced may be seen beside the one that replaces it.

    In a rolling deploy both work for a while; one that was killed has its jobs until their leases
    run out, and one that drains until its handlers have ended.
    """
    return max(_LEAST_OVERLAP_MS, 2 * lease_ms, lease_ms + grace_ms)


class OtherWorkers:
    """Warns once if another process works on the jobs of a store, for longer than a deploy takes.

    Such processes have signals of their own, if those are in memory: a fire in one wakes nobody in
    the other. Jobs name the worker that has them or ran them, so this costs no record, and a small
    query a minute only while there is another; alone, soon one an hour. Until jobs are run, nothing
    shows that there is another process.
    """

    def __init__(self, store: ListsWorkers, worker: str, *, overlap_ms: int) -> None:
        """Look into `store`, in which this process is named `worker`."""
        self._store = store
        self._worker = worker
        self._overlap_ms = overlap_ms
        # By the store's clock: what others did until the first look, they may be gone since.
        self._since_ms: int | None = None
        # {worker: when it was first seen at work since the first look}
        self._first_ms: dict[str, int] = {}
        # When others were last seen at work.
        self._last_ms = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on, on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="purgatory-other-workers")

    async def stop(self) -> None:
        """End looking. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = LOOK_EVERY_S / 2
        while True:
            last_ms = self._last_ms
            with contextlib.suppress(StoreError):
                # In an outage, which the worker reports.
                if await self.look():
                    return
            pause_s = LOOK_EVERY_S if self._last_ms > last_ms else min(2 * pause_s, MAX_PAUSE_S)
            # Not all processes of a deployment at once.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - spreads load

    async def look(self) -> bool:
        """Look once; return True iff it has warned, and need not look again. Raises StoreError."""
        seen = await self._store.workers(limit=LOOKED_AT)
        if self._since_ms is None:
            self._since_ms = max(seen.values(), default=0)
        for worker, at_ms in seen.items():
            if worker == self._worker or at_ms <= self._since_ms:
                continue
            self._last_ms = max(self._last_ms, at_ms)
            if self._has_stayed(worker, at_ms):
                self._warn(worker)
                return True
        return False

    def _has_stayed(self, worker: str, at_ms: int) -> bool:
        """Return True iff a worker that was at work now was so `overlap_ms` ago, too."""
        if worker not in self._first_ms and len(self._first_ms) >= MAX_WORKERS:
            # Those seen first are gone for longest.
            del self._first_ms[next(iter(self._first_ms))]
        first_ms = self._first_ms.setdefault(worker, at_ms)
        return at_ms - first_ms >= self._overlap_ms

    def _warn(self, other: str) -> None:
        logger.warning(
            "another process, %s, works on the jobs of this store, and signals are in the memory "
            "of this process: a fire in one wakes only who waits in the same; share them, "
            'Purgatory(signals=RedisSignals("redis://localhost:6379")), for the service '
            "PURGATORY_SIGNALS=redis://localhost:6379, or run one process "
            "(docs/how-to/several-workers.md)",
            other,
            extra={"action": "signals-not-shared"},
        )
