"""The table that the demonstration prints, with a column for each member."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from examples.join_group.simulated_consumers import StableGeneration

EVENT_WIDTH = 37
CELL_WIDTH = 7


class Table:
    """Prints rows with the seconds since the header."""

    def __init__(self, names: Sequence[str]) -> None:
        """Create a table with a column for each of `names`."""
        self._names = names
        self._started = 0.0
        # A terminal without box-drawing characters gets question marks instead of an error.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")

    def header(self) -> None:
        """Print the header and start the clock."""
        self._started = asyncio.get_running_loop().time()
        cells = "".join(name.rjust(CELL_WIDTH) for name in self._names)
        print(f"  time  {'event':<{EVENT_WIDTH}} gen  members{cells}")
        self.rule()

    def row(self, event: str, settled: StableGeneration | None = None) -> None:
        """Print an event and the partitions of all members."""
        seconds = asyncio.get_running_loop().time() - self._started
        start = f"{seconds:5.1f}s  {event:<{EVENT_WIDTH}}"
        print(f"{start} {self._cells(settled)}".rstrip(), flush=True)

    def rule(self) -> None:
        """Print a line."""
        print("─" * (EVENT_WIDTH + 21 + CELL_WIDTH * len(self._names)))

    def _cells(self, settled: StableGeneration | None) -> str:
        if settled is None:
            return ""
        cells = "".join(self._cell(name, settled).rjust(CELL_WIDTH) for name in self._names)
        return f"{settled.number:>3}  {len(settled.partitions):>7}{cells}"

    def _cell(self, name: str, settled: StableGeneration) -> str:
        if name not in settled.partitions:
            return "·"
        return ranges(settled.partitions[name]) + ("*" if name == settled.leader else "")


def ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as ranges: "0-2 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
