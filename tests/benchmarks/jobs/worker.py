"""One measurement in a process of its own: what to do comes as arguments, figures go out."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from tests.benchmarks.comparison.process import Collector
from tests.benchmarks.comparison.row import Samples
from tests.benchmarks.jobs import peer, recovery
from tests.benchmarks.jobs.databases import Database
from tests.benchmarks.jobs.deferring import deferring
from tests.benchmarks.jobs.lateness import bare_lateness, lateness
from tests.benchmarks.jobs.turns import TurnLoop

MEASUREMENTS: dict[str, Callable[..., Awaitable[Samples]]] = {
    "backlog": recovery.backlog,
    "deferring": deferring,
    "horizon": recovery.horizon,
    "lateness": lateness,
    "bare_lateness": bare_lateness,
    "recovery": recovery.recovery,
    "ours": peer.ours,
    "procrastinate": peer.procrastinate,
    "saq": peer.saq,
}


async def measured(name: str, /, **options: object) -> Samples:
    """Return what a measurement gave in a process of its own; raise RuntimeError if it failed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.jobs.worker", name, json.dumps(options)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the measurement {name!r} ended with status {process.returncode}")
    samples: Samples = json.loads(output)
    return samples


def main(name: str, options: dict[str, Any]) -> None:
    """Measure, and write the figures to standard output."""
    if "database" in options:
        options["database"] = Database(options["database"])
    Collector.SERVICE.apply()
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        samples = runner.run(_measure(MEASUREMENTS[name], options))
    sys.stdout.write(json.dumps(samples) + "\n")


async def _measure(
    measurement: Callable[..., Awaitable[Samples]], options: dict[str, Any]
) -> Samples:
    return await measurement(**options)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
