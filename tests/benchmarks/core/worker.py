"""A contender's process: reads commands and writes figures, one line of JSON each."""

from __future__ import annotations

import asyncio
import json
import sys

from tests.benchmarks.comparison.process import Collector
from tests.benchmarks.core.stage import Contender
from tests.benchmarks.core.stages import STAGES


def main(stage: str, name: str, collector: str) -> None:
    """Run the commands on standard input until it ends."""
    contender = STAGES[stage].contenders[name]
    Collector(collector).apply()
    with asyncio.Runner(loop_factory=contender.new_loop) as runner:
        runner.run(_serve(contender))


async def _serve(contender: Contender) -> None:
    actor = contender.prepare()
    # The loop may block: nothing happens between two commands.
    for line in sys.stdin:
        command = json.loads(line)
        figures = await getattr(actor, command["do"])(command["count"])
        sys.stdout.write(json.dumps(figures) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
