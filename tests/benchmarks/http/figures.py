"""The figures of the table: how each is written, and what it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.benchmarks.http.servers import BARE, PROTOCOL, ROUTER


@dataclass(frozen=True, slots=True)
class Figure:
    """One column. `field` is that of Measurement."""

    field: str
    title: str
    digits: int = 0
    is_more_better: bool = False
    depends_on_machine: bool = True


FIGURES: Final = (
    Figure("kb_each", "KB each", 1, depends_on_machine=False),
    Figure("park_us", "CPU us to park"),
    Figure("fan_out_ms", "last of fan-out, ms"),
    Figure("timeouts_ms", "last of timeouts, ms late"),
    Figure("cycles_per_second", "cycles/s at 32", is_more_better=True),
    Figure("wake_up_p50_us", "wake-up p50, us"),
    Figure("wake_up_p99_us", "p99"),
    Figure("wake_up_32_p50_us", "at 32: p50"),
    Figure("wake_up_32_p99_us", "p99"),
    Figure("client_share", "client's core", 2),
)

# Of the server alone: what a busy machine changes least.
CPU_FIGURES: Final = (
    Figure("request_us", "park, without accepting", 1),
    Figure("poll_us", "poll, without waiting", 1),
    Figure("fan_out_us", "answer of the fan-out", 1),
    Figure("timeout_us", "timeout and its answer", 1),
    Figure("cycle_us", "park, fire and both answers", 1),
)

# On two quiet cores, 10,000 parked; the floor as it was there. On another machine the floor is
# another, and the same code is as far from it.
TARGETS: Final[dict[str, dict[str, float]]] = {
    BARE.name: {
        "kb_each": 1.4,
        "park_us": 12.5,
        "fan_out_ms": 59,
        "timeouts_ms": 52,
        "cycles_per_second": 68_500,
    },
    PROTOCOL.name: {
        "kb_each": 6.5,
        "park_us": 32,
        "fan_out_ms": 100,
        "timeouts_ms": 100,
        "cycles_per_second": 20_000,
    },
    ROUTER.name: {
        "kb_each": 11,
        "park_us": 70,
        "fan_out_ms": 300,
        "timeouts_ms": 300,
        "cycles_per_second": 10_000,
    },
}
