"""Operations that wait for an event or a deadline, watched by keys. Knows no asyncio.

Here: the operation, the purgatory that holds operations by key, listeners on their life cycle, and
work on many operations in resumable batches. Not here: timers (`timer`), signals and cursors
(`signals`), futures and the event loop (`event_loop`).
"""

from purgatory.operations.delayed_operation import (
    DelayedOperation,
    DelayedOperationPurgatory,
    WatchStatistics,
)
from purgatory.operations.operation_listeners import (
    JobEvent,
    JobRecorder,
    Listener,
    OperationEvent,
    Recorder,
)

__all__ = [
    "DelayedOperation",
    "DelayedOperationPurgatory",
    "JobEvent",
    "JobRecorder",
    "Listener",
    "OperationEvent",
    "Recorder",
    "WatchStatistics",
]
