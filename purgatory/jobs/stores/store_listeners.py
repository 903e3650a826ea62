"""The listeners of a job store."""

from __future__ import annotations

from collections.abc import Callable

from purgatory.jobs.model.job import Job
from purgatory.jobs.stores.protocol import StoreListener


class StoreListeners:
    """The listeners of one store object, called on its event loop."""

    def __init__(self) -> None:
        """Start without listeners."""
        # {listener: None}: order of arrival and O(1) removal.
        self._listeners: dict[StoreListener, None] = {}

    def __bool__(self) -> bool:
        """True iff there is a listener."""
        return bool(self._listeners)

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Notify `listener` from now on; return the function that ends it."""
        self._listeners[listener] = None
        return lambda: self._listeners.pop(listener, None)

    def notify(self, job_id: str | None, due_ms: int | None) -> None:
        """Notify of a changed job, and of something that is due soon; None for neither."""
        # A copy: a listener may end its subscription.
        for listener in list(self._listeners):
            if job_id is not None:
                listener.on_change(job_id)
            if due_ms is not None:
                listener.on_due(due_ms)

    def notify_of(self, job: Job, until_ms: int) -> None:
        """Notify that `job` changed, and when it is due if it can be claimed by `until_ms`."""
        is_free = not job.state.is_final and not job.lease_until_ms
        self.notify(job.id, job.due_ms if is_free and job.due_ms <= until_ms else None)
