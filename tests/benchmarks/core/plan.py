"""The sizes of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.benchmarks.comparison.collector import Collector

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
