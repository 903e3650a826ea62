"""The cost of the journal on the event loop, and in its threads."""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from collections.abc import Iterable

from purgatory.event_loop.expiration_reaper import ExpirationReaper
from purgatory.operations import DelayedOperationPurgatory, Recorder
from purgatory.timer import SystemTimer
from tests.benchmarks.comparison.process import cpu_ns, thread_cpu_ns
from tests.benchmarks.core.contenders.watching import DELAY_MS, ORDER, OrderOperation
from tests.benchmarks.core.stage import Contender, Figures, Plan, Stage, Step

IS_PYARROW_INSTALLED = importlib.util.find_spec("pyarrow") is not None

# So many that the buffer never fills before they are written down.
CHUNK = 10_000
DISTINCT = 1_000

_KEYS = [(f"order:{order}",) for order in range(DISTINCT)]


class Unwritten:
    """Watch one key and complete through it, without listeners."""

    async def run(self, count: int) -> Figures:
        """Return the CPU time of an operation, of the loop's thread and of the process."""
        return await self._measure(self._core(), count)

    def _core(self, listeners: Iterable[Recorder] = ()) -> DelayedOperationPurgatory:
        timer = SystemTimer()
        ExpirationReaper(timer, asyncio.get_running_loop()).start()
        return DelayedOperationPurgatory("bench", timer, listeners=listeners)

    async def _measure(self, core: DelayedOperationPurgatory, count: int) -> Figures:
        chunks = max(1, count // CHUNK)
        started_ns, loop_ns = cpu_ns(), 0
        for _ in range(chunks):
            loop_ns += await self._chunk(core)
            await self._write_down()
        operations = chunks * CHUNK
        return {"on the loop": loop_ns / operations, "in all": (cpu_ns() - started_ns) / operations}

    async def _chunk(self, core: DelayedOperationPurgatory) -> int:
        started_ns = thread_cpu_ns()
        watch, check = core.try_complete_else_watch, core.check_and_complete
        for _ in range(CHUNK // DISTINCT):
            for keys in _KEYS:
                ORDER.is_paid = False
                watch(OrderOperation(DELAY_MS), keys)
                ORDER.is_paid = True
                check(keys[0])
            await asyncio.sleep(0)
        return thread_cpu_ns() - started_ns

    async def _write_down(self) -> None:
        """Wait until the records are written; there are none here."""


class Written(Unwritten):
    """The same, written to Parquet files."""

    async def run(self, count: int) -> Figures:
        """Raises RuntimeError if rows were dropped, as that would be too cheap."""
        # Imported here: the other stages need no pyarrow.
        from purgatory.journal import Journal, ParquetFiles

        with tempfile.TemporaryDirectory() as directory:
            async with Journal(ParquetFiles(directory)) as journal:
                self._journal = journal
                figures = await self._measure(self._core([journal]), count)
                statistics = journal.statistics()
        if statistics.dropped or statistics.sinks[0].dropped:
            raise RuntimeError(f"the journal did not keep up: {statistics}")
        return figures

    async def _write_down(self) -> None:
        await asyncio.to_thread(self._journal.flush, 60.0)


def _steps(plan: Plan) -> list[Step]:
    return [Step("run", plan.operations)] * plan.rounds


JOURNALING = Stage(
    {
        "journal": Contender(Written, needs_pyarrow=True),
        "no journal": Contender(Unwritten),
    },
    _steps,
)
