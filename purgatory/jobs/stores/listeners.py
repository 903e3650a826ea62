"""Who hears from a store."""

from __future__ import annotations

from collections.abc import Callable

from purgatory.jobs.model.job import Job
from purgatory.jobs.stores.base import StoreListener


class StoreListeners:
    """The listeners of one store object, called on its event loop."""

    def __init__(self) -> None:
        """Begin without any."""
        # {listener: None}: order of arrival and O(1) removal.
        self._listeners: dict[StoreListener, None] = {}

    def __bool__(self) -> bool:
        """True iff anybody listens."""
        return bool(self._listeners)

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Tell `listener` from now on; return the function that ends it."""
        self._listeners[listener] = None
        return lambda: self._listeners.pop(listener, None)

    def tell(self, job_id: str | None, due_ms: int | None) -> None:
        """Tell that a job changed, and that something is due soon; None for neither."""
        # A copy: a listener may end its subscription.
        for listener in list(self._listeners):
            if job_id is not None:
                listener.on_change(job_id)
            if due_ms is not None:
                listener.on_due(due_ms)

    def tell_of(self, job: Job, until_ms: int) -> None:
        """Tell that `job` changed, and when it is due if it can be claimed by `until_ms`."""
        is_free = not job.state.is_final and not job.lease_until_ms
        self.tell(job.id, job.due_ms if is_free and job.due_ms <= until_ms else None)
