"""Floor 1, time: a hierarchical timing wheel. Integers of milliseconds in, callbacks out.

Nothing here knows of asyncio or of keys, and only `clock` asks what time it is.
"""

from purgatory.timer.clock import Clock, SystemClock
from purgatory.timer.system_timer import MAX_DELAY_MS, SystemTimer
from purgatory.timer.task import TimerTask
from purgatory.timer.task_list import PendingCounter, TimerTaskList
from purgatory.timer.wheel import TimingWheel

__all__ = [
    "MAX_DELAY_MS",
    "Clock",
    "PendingCounter",
    "SystemClock",
    "SystemTimer",
    "TimerTask",
    "TimerTaskList",
    "TimingWheel",
]
