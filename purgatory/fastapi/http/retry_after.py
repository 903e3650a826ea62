"""When clients that were sent away come back: Retry-After, and the pause after a drain."""

from __future__ import annotations

import random
from typing import Final

# Seconds: what sent them away, such as too many parked requests, passes by itself.
_RETRY_AFTER_S: Final = (1, 5)
# After a drain: long enough for another process to be ready, and spread over clients.
_POLL_AFTER_DRAIN_MS: Final = (100, 2000)


def retry_after() -> dict[str, str]:
    """Return a Retry-After header (RFC 9110, 10.2.3), jittered to spread the retries of clients."""
    return {"Retry-After": str(random.randint(*_RETRY_AFTER_S))}  # noqa: S311 - spreads retries


def poll_after_drain_ms() -> int:
    """Return how long a client whose wait a drain ended is to pause, jittered."""
    return random.randint(*_POLL_AFTER_DRAIN_MS)  # noqa: S311 - spreads reconnects
