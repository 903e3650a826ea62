"""Stages: the sizes of a run, its contenders and their event loops."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import selectors
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.benchmarks.comparison.process import Collector, cpu_ns

_SIZES = (
    "timers",
    "outstanding",
    "expiring",
    "expirations",
    "lateness",
    "operations",
    "parks",
    "requests",
    "idle_ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of a run. The title of a row has the sizes that it depends on."""

    mode: str
    collector: Collector = Collector.SERVICE
    rounds: int
    slow_rounds: int
    """Rounds of steps that take seconds each."""
    timers: int = 1_000_000
    """Timers whose memory is measured, that are idle, or that expire at one deadline."""
    outstanding: int
    """Timers outstanding while as many are added and cancelled."""
    expiring: int = 1_000_000
    """Timers outstanding when some of them expire."""
    expirations: int
    """Timers that expire in a round."""
    lateness: int = 100_000
    """Timers whose lateness is measured, in real time."""
    operations: int
    """Operations watched and completed in a round."""
    parks: int
    """Calls parked and fired in a round."""
    requests: int
    """Requests of Kafka's load in a round."""
    idle_ms: int = 10_000
    """How long the loop is idle."""
    expected_s: int
    """The approximate duration of the run."""

    def sizes(self) -> dict[str, str]:
        """Return every size by its name, as text for titles."""
        return {name: f"{getattr(self, name):,}" for name in _SIZES}

    def scaled(self, scale: float) -> Plan:
        """Return the plan with everything but its rounds smaller, or larger."""
        sizes = {name: max(10, round(getattr(self, name) * scale)) for name in _SIZES}
        mode = self.mode if scale == 1 else f"{self.mode}, scaled by {scale:g}"
        # Starting the processes takes some seconds, whatever the sizes.
        expected_s = round(10 + max(0, self.expected_s - 10) * scale)
        return replace(self, mode=mode, expected_s=expected_s, **sizes)


QUICK = Plan(
    mode="quick",
    rounds=3,
    slow_rounds=2,
    outstanding=200_000,
    expirations=100_000,
    operations=50_000,
    parks=20_000,
    requests=30_000,
    expected_s=55,
)

FULL = Plan(
    mode="full",
    rounds=5,
    slow_rounds=5,
    outstanding=1_000_000,
    expirations=200_000,
    operations=500_000,
    parks=200_000,
    requests=500_000,
    expected_s=420,
)


Figures = dict[str, float]
"""The figures of one step: {measure: figure}."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of doing the work of a stage."""

    prepare: Callable[[], object]
    """Returns, on the running loop, the object whose async methods are the steps."""
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop
    needs_uvloop: bool = False
    needs_pyarrow: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One action of the contenders."""

    do: str
    """The name of the method; it takes `count` and returns Figures."""
    count: int
    is_timed: bool = True
    """False: all contenders do it at the same time, as its figures are not CPU time."""
    without: frozenset[str] = frozenset()
    """Contenders that leave this step out."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Contenders, and their steps."""

    contenders: Mapping[str, Contender]
    steps: Callable[[Plan], Sequence[Step]]
    is_idle: bool = False
    """True: the last step only waits, and may do so while other stages run."""


IS_UVLOOP_INSTALLED = importlib.util.find_spec("uvloop") is not None


def new_uvloop() -> asyncio.AbstractEventLoop:
    """Return a uvloop; raises ImportError if it is not installed."""
    import uvloop

    return uvloop.new_event_loop()


class CountingSelector(selectors.DefaultSelector):
    """Counts how often the loop slept and woke up."""

    def __init__(self) -> None:
        super().__init__()
        self.selects = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Select, and count it."""
        self.selects += 1
        return super().select(timeout)


class CountingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose wake-ups are counted."""

    def __init__(self) -> None:
        self.selector = CountingSelector()
        super().__init__(self.selector)


class SteppedLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time stands still until `now_s` is set."""

    def __init__(self) -> None:
        # Before super().__init__, which asks for the time.
        self.now_s = 1_000.0
        super().__init__()

    def time(self) -> float:
        """Return `now_s`."""
        return self.now_s


CHUNK = 1_000

# As many different delays as matter to a cache or a heap, at a fraction of the memory.
_DISTINCT = 100_000


def random_delays(count: int, units_per_ms: float = 1) -> list[float]:
    """Return `count` delays from 30 to 60 s, the same ones in every process.

    In whole milliseconds, as our timers take them, or in other units.
    """
    source = random.Random(20)
    distinct = [source.randrange(30_000, 60_000) * units_per_ms for _ in range(_DISTINCT)]
    return [distinct[index % _DISTINCT] for index in range(count)]


async def cpu_ns_each(
    work: Callable[[Sequence[float]], None], items: Sequence[float], count: int
) -> float:
    """Do `work` with `count` of `items`, chunk by chunk; return the CPU time for each, in ns.

    Includes the turns of the loop, and so whatever a loop puts off until then.
    """
    chunks = [items[start : start + CHUNK] for start in range(0, count, CHUNK)]
    started_ns = cpu_ns()
    for chunk in chunks:
        work(chunk)
        await asyncio.sleep(0)
    return (cpu_ns() - started_ns) / count
