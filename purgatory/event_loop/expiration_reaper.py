"""Runs a timer on an event loop (Kafka: ExpiredOperationReaper)."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Handle
from contextvars import Context, copy_context

from purgatory.event_loop.sliced_runner import SLICE_NS
from purgatory.timer import SystemTimer
from purgatory.timer.clock import NS_PER_MS

STEP = 256


class ExpirationReaper:
    """Advances a timer when its next bucket is due, and sleeps otherwise.

    No thread and no periodic tick: one handle is armed for the next bucket, re-armed for an earlier
    one, and kept when tasks are cancelled. Each turn of the loop runs tasks for about a
    millisecond; tasks that are still due run in the next turn, in the context of `start`.
    """

    __slots__ = (
        "_armed_ms",
        "_context",
        "_handle",
        "_is_running",
        "_loop",
        "_timer",
        "longest_turn_ns",
        "wake_ups",
    )

    def __init__(self, timer: SystemTimer, loop: AbstractEventLoop, *, wake_ups: int = 0) -> None:
        """Prepare to run `timer` on `loop`; call `start`. Count on from `wake_ups`."""
        self._timer = timer
        self._loop = loop
        self._is_running = False
        self._handle: Handle | None = None
        # That of each turn: the handle is armed by any code that adds a task.
        self._context: Context
        # The time for which the handle is armed.
        self._armed_ms: int | None = None
        self.wake_ups: int = wake_ups
        self.longest_turn_ns: int = 0

    def start(self) -> None:
        """Start; tasks that are due already run in the next turn of the loop."""
        self._is_running = True
        self._context = copy_context()
        self._timer.on_earlier = self._on_earlier
        self._arm()

    def stop(self) -> None:
        """Stop running tasks, and disarm the handle."""
        self._is_running = False
        self._timer.on_earlier = None
        self._disarm()

    def _on_earlier(self, expiration_ms: int) -> None:
        if self._armed_ms is None or expiration_ms < self._armed_ms:
            self._disarm()
            self._arm_for(expiration_ms)

    def _arm(self) -> None:
        expiration_ms = self._timer.next_expiration_ms()
        if expiration_ms is not None:
            self._arm_for(expiration_ms)

    def _arm_for(self, expiration_ms: int) -> None:
        self._armed_ms = expiration_ms
        delay_ns = expiration_ms * NS_PER_MS - self._timer.clock.now_ns()
        if delay_ns <= 0:
            self._handle = self._loop.call_soon(self._turn, context=self._context)
            return
        # Rounded up to a whole millisecond: uvloop caches its time to the millisecond, and an exact
        # delay would wake it early, repeatedly.
        delay_ms = -(-delay_ns // NS_PER_MS)
        self._handle = self._loop.call_later(delay_ms / 1000, self._turn, context=self._context)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_ms = None

    def _turn(self) -> None:
        self.wake_ups += 1
        timer, clock = self._timer, self._timer.clock
        started_ns = clock.now_ns()
        try:
            # A task may stop this reaper.
            while self._is_running:
                timer.advance_clock(STEP)
                now_ns = clock.now_ns()
                next_ms = timer.next_expiration_ms()
                if next_ms is None or next_ms * NS_PER_MS > now_ns:
                    break
                if now_ns - started_ns >= SLICE_NS:
                    break
        finally:
            # Also after an interrupt in a task, the reaper is armed for the next bucket.
            self.longest_turn_ns = max(self.longest_turn_ns, clock.now_ns() - started_ns)
            self._disarm()
            if self._is_running:
                self._arm()
