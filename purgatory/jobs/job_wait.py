"""The operation behind a wait for a job to change."""

from __future__ import annotations

from collections.abc import Callable

from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.status import Status


class JobWait(DelayedOperation):
    """Fires once its job has changed since the wait was made. It is listening before it is watched.

    So: make it, ask the store for the job, and only then decide to wait; what changes meanwhile
    counts.
    """

    __slots__ = ("_on_end", "has_changed", "job_id")

    def __init__(self, job_id: str, on_end: Callable[[Status], object]) -> None:
        """Call `on_end` once, with how it ended, unless it is left before."""
        super().__init__(0)
        self._on_end: Callable[[Status], object] | None = on_end
        self.job_id = job_id
        self.has_changed = False

    @property
    def watch_key(self) -> str:
        """The key that it is counted under among those that are watched."""
        return f"purgatory/jobs/{self.job_id}"

    def note_change(self) -> None:
        """Fire: the job changed."""
        self.has_changed = True
        self.try_complete()

    def try_complete(self) -> bool:
        """Complete if the job has changed."""
        return self.has_changed and self.force_complete()

    def on_complete(self) -> None:
        """Report the end: fired or expired."""
        if self._on_end is not None:
            self._on_end(self.status)

    def on_cancellation(self) -> None:
        """Report the end: cancelled or drained."""
        self.on_complete()

    def leave(self) -> None:
        """End without reporting it: the caller waits no more. Idempotent."""
        self._on_end = None
        self.cancel()
