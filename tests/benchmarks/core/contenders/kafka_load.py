"""The load of Kafka's own benchmark of its purgatory (TestPurgatoryPerformance)."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

RATE_PER_S = 100_000
TIMEOUT_MS = 200
KEY_SPACE = 100
KEYS_EACH = 3

# The quantile of the normal distribution below which three quarters lie.
_QUARTILE = 0.67449


Event = tuple[int, int, bool]
"""(time in ns, number of a request, whether it arrives rather than completes). Not a named tuple:
to take one apart costs three times as much, and is the load's, not the timer's."""


@dataclass(frozen=True, slots=True)
class KafkaLoad:
    """Poisson arrivals, and completions after latencies of a log-normal distribution."""

    median_ms: int
    """Half of the latencies are below."""
    quartile_ms: int
    """Three quarters of the latencies are below."""

    def keys(self) -> tuple[str, ...]:
        """Return the keys that all requests share, drawn once."""
        return tuple(str(key) for key in random.Random(22).sample(range(KEY_SPACE), KEYS_EACH))

    def events(self, count: int) -> list[Event]:
        """Return the events of `count` requests, in order of time.

        A request with a latency beyond the timeout has no completion: it expires.
        """
        source = random.Random(23)
        mu = math.log(self.median_ms)
        sigma = (math.log(self.quartile_ms) - mu) / _QUARTILE
        events: list[Event] = []
        at_s = 0.0
        for request in range(count):
            at_s += source.expovariate(RATE_PER_S)
            events.append((round(at_s * 1e9), request, True))
            latency_ms = source.lognormvariate(mu, sigma)
            if latency_ms < TIMEOUT_MS:
                at_ns = round((at_s + latency_ms / 1000) * 1e9)
                events.append((at_ns, request, False))
        return sorted(events)


# Kafka's published settings: about 8 % and 50 % expire.
LOW = KafkaLoad(20, 60)
HIGH = KafkaLoad(200, 400)
