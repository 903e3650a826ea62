"""Tracing of one purgatory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    TracerProvider,
    get_current_span,
    get_tracer,
)

from purgatory.jobs import Job
from purgatory.purgatory import Purgatory
from purgatory.tracing.propagation import SpanPropagation
from purgatory.tracing.wait_spans import WaitSpans
from purgatory.wrong_type import check_type

MAX_DEFERRED: Final = 10_000
"""Jobs whose defer is remembered, for the link from their runs; beyond, the oldest are not."""


class PurgatoryTracing:
    """Spans of a purgatory's waits, and of the runs of its jobs. Make it before it is opened.

    A span `purgatory.wait` for each operation that is parked, with `purgatory.kind`,
    `purgatory.outcome` and `purgatory.timeout_ms`, and a link to the span in which the fire was
    made that woke it: also in another process, if that is traced and signals are shared. What is
    answered at once has none.

    A span `purgatory.job` for each run of a handler, current in the handler, with
    `purgatory.job.id`, `purgatory.job.handler` and `purgatory.job.attempt`, and a link to the span
    in which the job was deferred, if that was in this process. The store does not keep spans: over
    processes and restarts, the id of the job is what both have.
    """

    def __init__(
        self,
        purgatory: Purgatory,
        *,
        tracer_provider: TracerProvider | None = None,
        keys: bool = False,
    ) -> None:
        """Trace `purgatory`; with `keys`, spans have the watch keys, which may be personal data.

        Raises TypeError for another purgatory than an object of that class, RuntimeError if it is
        open already.
        """
        check_type("purgatory", purgatory, Purgatory, "an object, Purgatory()")
        self._tracer = get_tracer("purgatory", tracer_provider=tracer_provider)
        # {id of a job: the span in which it was deferred}
        self._deferred: dict[str, SpanContext] = {}
        purgatory.add_listener(WaitSpans(self._tracer, has_keys=keys))
        if purgatory.shared_signals is not None:
            purgatory.shared_signals.propagation = SpanPropagation()
        purgatory.handlers.around = self._run
        purgatory.handlers.on_deferred = self._note_deferred

    def _note_deferred(self, job_id: str) -> None:
        span = get_current_span()
        context = span.get_span_context()
        if not context.is_valid:
            return
        span.set_attribute("purgatory.job.id", job_id)
        while len(self._deferred) >= MAX_DEFERRED:
            del self._deferred[next(iter(self._deferred))]
        self._deferred[job_id] = context

    @contextmanager
    def _run(self, job: Job) -> Iterator[None]:
        deferred = self._deferred.get(job.id)
        attributes: dict[str, str | int] = {
            "purgatory.job.id": job.id,
            "purgatory.job.handler": job.handler,
            "purgatory.job.attempt": job.attempt,
        }
        with self._tracer.start_as_current_span(
            "purgatory.job",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=() if deferred is None else [Link(deferred)],
        ):
            yield
