"""The operation behind a wait for a job to change."""

from __future__ import annotations

from collections.abc import Callable

from purgatory.operations.delayed_operation import DelayedOperation


class JobWait(DelayedOperation):
    """Wakes its caller whenever its job is to be read, who lets it succeed by what it reads.

    So: create it, read the job from the store, and only then park it; a change in between is not
    missed.
    """

    kind = "job-wait"

    __slots__ = ("_wake", "client", "job_id", "must_read")

    def __init__(self, job_id: str, wake: Callable[[], object], client: str | None = None) -> None:
        """Call `wake` for each look at the job, and at the end unless the caller ended the wait."""
        super().__init__(0)
        self._wake: Callable[[], object] | None = wake
        self.job_id = job_id
        self.client = client
        """Who waits, for operators."""
        self.must_read = False
        """Whether the job may have changed since the caller set this to False."""

    @property
    def watch_key(self) -> str:
        """The key under which the purgatory counts the wait."""
        return f"purgatory/jobs/{self.job_id}"

    def note_change(self) -> None:
        """Let the caller read the job, which may have changed."""
        self.must_read = True
        self._notify()

    def succeed(self) -> bool:
        """Fire: the caller has read what it waits for. Return True iff the wait was pending."""
        self._wake = None
        return self.force_complete()

    def try_complete(self) -> bool:
        """Return False: only the store knows the job."""
        return False

    def on_complete(self) -> None:
        """End: fired or expired."""
        self._notify()

    def on_cancellation(self) -> None:
        """End: cancelled or drained."""
        self._notify()

    def abandon(self) -> bool:
        """End it: the caller has gone. Return True iff it was pending. Idempotent."""
        self._wake = None
        return self.cancel()

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake()
