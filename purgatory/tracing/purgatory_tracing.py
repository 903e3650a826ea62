"""Tracing of one purgatory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, TracerProvider, get_current_span, get_tracer

from purgatory.jobs import Job
from purgatory.purgatory import Purgatory
from purgatory.tracing.propagation import SpanPropagation, span_context
from purgatory.tracing.wait_spans import WaitSpans
from purgatory.wrong_type import check_type


class PurgatoryTracing:
    """Spans of a purgatory's waits, and of the runs of its jobs. Make it before it is opened.

    A span `purgatory.wait` for each operation that is parked, with `purgatory.kind`,
    `purgatory.outcome` and `purgatory.timeout_ms`, and a link to the span in which the fire was
    made that woke it. What is answered at once has none.

    A span `purgatory.job` for each run of a handler, current in the handler, with
    `purgatory.job.id`, `purgatory.job.handler` and `purgatory.job.attempt`, and a link to the span
    in which the job was deferred.

    Links lead to spans of other processes, too, if those are traced: the trace context of a fire
    travels with its signal, and that of a `defer` is stored with the job.
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
        purgatory.add_listener(WaitSpans(self._tracer, purgatory.inspection(), has_keys=keys))
        propagation = SpanPropagation()
        if purgatory.shared_signals is not None:
            purgatory.shared_signals.propagation = propagation
        purgatory.handlers.propagation = propagation
        purgatory.handlers.around = self._run
        purgatory.handlers.on_deferred = _note_deferred

    @contextmanager
    def _run(self, job: Job) -> Iterator[None]:
        attributes: dict[str, str | int] = {
            "purgatory.job.id": job.id,
            "purgatory.job.handler": job.handler,
            "purgatory.job.attempt": job.attempt,
        }
        with self._tracer.start_as_current_span(
            "purgatory.job",
            # Not what was current where the process was opened, or where the job was woken.
            context=Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=() if job.traceparent is None else [Link(span_context(job.traceparent))],
        ):
            yield


def _note_deferred(job_id: str) -> None:
    get_current_span().set_attribute("purgatory.job.id", job_id)
