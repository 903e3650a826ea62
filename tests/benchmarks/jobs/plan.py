"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPlan:
    """Sizes of a run. Whatever of them a row depends on stands in its title."""

    mode: str
    rounds: int
    """Of what takes seconds each."""
    deferred: int
    """Jobs in a round of deferring."""
    late: int
    """Jobs that are due in the same minute, or share of it."""
    minute_s: float
    backlog: int
    """Jobs that wait while a process recovers."""
    horizon: int
    """Jobs that are due soon then, and as many that were missed."""
    peer: int
    """Jobs that are deferred and run beside a peer."""
    peer_s: int
    """How long those of them are spread that are not due together."""
    expected_s: int

    def sizes(self) -> dict[str, str]:
        """Return the sizes for titles."""
        names = ("late", "backlog", "peer", "minute_s")
        return {name: f"{getattr(self, name):,.0f}" for name in names}


QUICK = JobsPlan(
    mode="quick",
    rounds=5,
    deferred=3_200,
    late=2_000,
    minute_s=12,
    backlog=50_000,
    horizon=5_000,
    peer=3_000,
    peer_s=10,
    expected_s=180,
)

FULL = JobsPlan(
    mode="full",
    rounds=7,
    deferred=12_800,
    late=10_000,
    minute_s=60,
    backlog=1_000_000,
    horizon=5_000,
    peer=10_000,
    peer_s=20,
    expected_s=1_500,
)

TRIAL = JobsPlan(
    mode="trial",
    rounds=1,
    deferred=640,
    late=100,
    minute_s=2,
    backlog=1_000,
    horizon=100,
    peer=200,
    peer_s=2,
    expected_s=60,
)
