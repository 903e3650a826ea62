"""Durations of waits: as clients write them (25, 2.5, 500ms, 25s or 1m), and as they end."""

from __future__ import annotations

import random
import re
from functools import lru_cache
from typing import Final

from purgatory.fastapi.http.problems import bad_parameter

# For OpenAPI too: a regular expression that JavaScript also reads.
WAIT_PATTERN: Final = r"^[0-9]{1,10}(\.[0-9]{1,9})?(ms|s|m)?$"
_WAIT: Final = re.compile(WAIT_PATTERN)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}
# From here on the answer may come a little early, so that polls do not return in step.
JITTER_FROM_SECONDS: Final = 5.0
ALLOWED_WAIT: Final = "seconds such as 25 or 2.5, or with a unit: 500ms, 25s, 1m"


def is_wait(text: str) -> bool:
    """Return True iff `wait_seconds` accepts `text`."""
    return _WAIT.fullmatch(text) is not None


# Cached: clients send few different waits, each again and again.
@lru_cache(maxsize=1024)
def wait_seconds(text: str, param: str) -> float:
    """Return a wait in seconds; raise Problem that names `param` if `text` is not one."""
    match = _WAIT.fullmatch(text)
    if match is None:
        raise bad_parameter(param, f"{param} is {text[:64]!r}", ALLOWED_WAIT)
    unit = match[2] or ""
    return float(text.removesuffix(unit)) * _SECONDS[unit]


def jittered(wait: float) -> float:
    """Return the seconds until the wait ends: 90-100 % of a long wait, all of a short one."""
    if wait < JITTER_FROM_SECONDS:
        return wait
    # Short of all of it, to leave the loop's own lag within the promise.
    return wait * (0.9 + 0.085 * random.random())  # noqa: S311 - spreads reconnects
