"""Park until a watch key fires or a deadline passes: whichever comes first, exactly once.

    purgatory = Purgatory()

    async with purgatory:
        outcome = await purgatory.park("order:42:paid", timeout=25)   # in one task
        await purgatory.fire("order:42:paid", {"by": "card"})         # in another

The web edge is `purgatory.fastapi`; what tests need is in `purgatory.testing`.
"""

from purgatory.errors import (
    BadCursorError,
    CursorError,
    CursorExpiredError,
    InvalidKeyError,
    InvalidTimeoutError,
    InvalidValueError,
    LimitReachedError,
    PurgatoryClosedError,
    PurgatoryDrainingError,
    PurgatoryError,
    SeveralWorkersError,
    WrongThreadError,
)
from purgatory.fire_result import FireResult
from purgatory.jobs.job_handle import JobHandle
from purgatory.limits import Limits
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.operations.delayed_operation_purgatory import (
    DelayedOperationPurgatory,
    WatchStatistics,
)
from purgatory.operations.listeners import JobRecorder, Listener, OperationEvent, Recorder
from purgatory.outcome import Outcome
from purgatory.purgatory import LevelStatistics, Purgatory, Statistics
from purgatory.signals import Signal, SignalStatistics
from purgatory.status import Status
from purgatory.timer import (
    MAX_DELAY_MS,
    Clock,
    SystemClock,
    SystemTimer,
    TimerTask,
    TimerTaskList,
    TimingWheel,
)

__all__ = [
    "MAX_DELAY_MS",
    "BadCursorError",
    "Clock",
    "CursorError",
    "CursorExpiredError",
    "DelayedOperation",
    "DelayedOperationPurgatory",
    "FireResult",
    "InvalidKeyError",
    "InvalidTimeoutError",
    "InvalidValueError",
    "JobHandle",
    "JobRecorder",
    "LevelStatistics",
    "LimitReachedError",
    "Limits",
    "Listener",
    "OperationEvent",
    "Outcome",
    "Purgatory",
    "PurgatoryClosedError",
    "PurgatoryDrainingError",
    "PurgatoryError",
    "Recorder",
    "SeveralWorkersError",
    "Signal",
    "SignalStatistics",
    "Statistics",
    "Status",
    "SystemClock",
    "SystemTimer",
    "TimerTask",
    "TimerTaskList",
    "TimingWheel",
    "WatchStatistics",
    "WrongThreadError",
]
