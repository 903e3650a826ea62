"""Time: a hierarchical timing wheel. Integers of milliseconds in, callbacks out.

Not here: asyncio and keys. Only `clock` reads the time.
"""

from purgatory.timer.clock import Clock, SystemClock
from purgatory.timer.scheduled_call import ScheduledCall
from purgatory.timer.system_timer import SystemTimer
from purgatory.timer.system_timer import is_compiled as compiled
from purgatory.timer.task import MAX_DELAY_MS, PendingTasks, TimerTask, TimerTaskList
from purgatory.timer.wheel import TimingWheel

__all__ = [
    "MAX_DELAY_MS",
    "Clock",
    "PendingTasks",
    "ScheduledCall",
    "SystemClock",
    "SystemTimer",
    "TimerTask",
    "TimerTaskList",
    "TimingWheel",
    "compiled",
]
