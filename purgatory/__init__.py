"""Park until a watch key fires or a deadline passes: whichever comes first, exactly once.

    purgatory = Purgatory()

    async with purgatory:
        outcome = await purgatory.park("order:42:paid", timeout=25)   # in one task
        await purgatory.fire("order:42:paid", {"by": "card"})         # in another

Here is what an application needs. The web edge is `purgatory.fastapi`, delayed jobs are in
`purgatory.jobs`, with their errors; all other errors are in `purgatory.errors`. The history is in
`purgatory.journal`, what tests need in `purgatory.testing`, timers and clocks are in
`purgatory.timer`, listeners and Kafka's `DelayedOperationPurgatory` in `purgatory.operations`.
"""

from purgatory.environment import warn_of_another_distribution as _warn_of_another_distribution
from purgatory.errors import (
    BadCursorError,
    CursorExpiredError,
    InvalidKeyError,
    InvalidTimeoutError,
    InvalidValueError,
    LimitReachedError,
    PurgatoryClosedError,
    PurgatoryDrainingError,
    PurgatoryError,
    WrongThreadError,
)
from purgatory.limits import Limits
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.outcome import FireResult, Outcome, Status
from purgatory.purgatory import Purgatory, Statistics

__all__ = [
    "BadCursorError",
    "CursorExpiredError",
    "DelayedOperation",
    "FireResult",
    "InvalidKeyError",
    "InvalidTimeoutError",
    "InvalidValueError",
    "LimitReachedError",
    "Limits",
    "Outcome",
    "Purgatory",
    "PurgatoryClosedError",
    "PurgatoryDrainingError",
    "PurgatoryError",
    "Statistics",
    "Status",
    "WrongThreadError",
]

_warn_of_another_distribution()
