"""The operation behind a wait for a job to change."""

from __future__ import annotations

from collections.abc import Callable

from purgatory.operations.delayed_operation import DelayedOperation


class JobWait(DelayedOperation):
    """Fires once its job has changed since the wait was created, even before it is watched.

    So: create it, read the job from the store, and only then decide to wait; a change in between is
    not missed.
    """

    kind = "job-wait"

    __slots__ = ("_on_end", "has_changed", "job_id")

    def __init__(self, job_id: str, on_end: Callable[[], object]) -> None:
        """Call `on_end` once, with `status` set, unless the wait is abandoned before."""
        super().__init__(0)
        self._on_end: Callable[[], object] | None = on_end
        self.job_id = job_id
        self.has_changed = False

    @property
    def watch_key(self) -> str:
        """The key under which the purgatory counts the wait."""
        return f"purgatory/jobs/{self.job_id}"

    def note_change(self) -> None:
        """Fire: the job changed."""
        self.has_changed = True
        self.try_complete()

    def try_complete(self) -> bool:
        """Complete if the job has changed."""
        return self.has_changed and self.force_complete()

    def on_complete(self) -> None:
        """End: fired or expired."""
        if self._on_end is not None:
            self._on_end()

    def on_cancellation(self) -> None:
        """End: cancelled or drained."""
        self.on_complete()

    def abandon(self) -> bool:
        """End without `on_end`: the caller has gone. Return True iff it was pending. Idempotent."""
        self._on_end = None
        return self.cancel()
