"""Spans of waits and of runs of jobs, by OpenTelemetry. Extra `tracing`.

    PurgatoryTracing(purgatory)

It needs the API only: without an SDK, or for what is not sampled, spans cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from purgatory.errors import check_type
from purgatory.event_loop.inspection import Inspection
from purgatory.jobs import Job
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.operations.operation_listeners import kind_of
from purgatory.outcome import Status
from purgatory.purgatory import Purgatory

try:
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        INVALID_SPAN,
        Link,
        Span,
        SpanKind,
        Tracer,
        TracerProvider,
        format_trace_id,
        get_current_span,
        get_tracer,
        use_span,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as exc:
    raise ImportError(
        "this needs opentelemetry-api: pip install 'fastapi-purgatory[tracing]'"
    ) from exc

__all__ = ["PurgatoryTracing", "SpanPropagation", "trace_id"]

_PROPAGATOR: Final = TraceContextTextMapPropagator()


def trace_id() -> str | None:
    """Return the id of the current trace; None outside any. A label: `labels={"trace": trace_id}`.

    In 32 hexadecimal digits, as the tools that show traces look for it.
    """
    context = get_current_span().get_span_context()
    return format_trace_id(context.trace_id) if context.is_valid else None


class SpanPropagation:
    """Reads the current span, and restores that of another process.

    `PurgatoryTracing` has one. Give another to a `JobClient`, for processes without a purgatory.
    """

    def current(self) -> str | None:
        """Return the `traceparent` of the current span; None if it is not sampled.

        A link to a span that nobody exports would lead nowhere.
        """
        context = get_current_span().get_span_context()
        if not (context.is_valid and context.trace_flags.sampled):
            return None
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier["traceparent"]

    def restore(self, traceparent: str | None) -> AbstractContextManager[object]:
        """Return a context in which the current span is that of another process, or none."""
        return use_span(INVALID_SPAN if traceparent is None else _span_of(traceparent))


def _span_of(traceparent: str) -> Span:
    """Return a span of another process; the invalid one if `traceparent` is none."""
    return get_current_span(_PROPAGATOR.extract({"traceparent": traceparent}))


class WaitSpans:
    """A Recorder that begins a span when an operation is parked, and ends it with its outcome.

    Its parent is the current span of who parks. A fire that completes it is linked, by the span
    that is current there.
    """

    def __init__(self, tracer: Tracer, inspection: Inspection, *, has_keys: bool) -> None:
        """Begin spans by `tracer`; with `has_keys`, they have the keys as an attribute."""
        self._tracer = tracer
        self._inspection = inspection
        inspection.keep_ended_in()
        self._has_keys = has_keys
        # {id of an operation, which is unique while it waits: its span}
        self._spans: dict[int, Span] = {}

    def record(
        self,
        operation: DelayedOperation,
        status: Status,
        keys: tuple[Hashable, ...],
        key: Hashable | None,
        deadline_ms: int,
    ) -> None:
        """Begin the span of an operation, or end it."""
        if status is Status.PENDING:
            self._begin(operation, keys)
            return
        span = self._spans.pop(id(operation), None)
        if span is None:
            return
        if status is Status.FIRED:
            fired_in = self._inspection.ended_in
            fire = get_current_span() if fired_in is None else fired_in.run(get_current_span)
            by = fire.get_span_context()
            if by.is_valid and by != span.get_span_context():
                span.add_link(by)
            if self._has_keys and key is not None:
                span.set_attribute("purgatory.fired_key", str(key))
        span.set_attribute("purgatory.outcome", status.value)
        span.end()

    def _begin(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        attributes: dict[str, Any] = {
            "purgatory.kind": kind_of(type(operation)),
            "purgatory.timeout_ms": operation.delay_ms,
        }
        if self._has_keys:
            attributes["purgatory.keys"] = [str(key) for key in keys]
        span = self._tracer.start_span("purgatory.wait", attributes=attributes)
        if span.is_recording():
            self._spans[id(operation)] = span


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
        deferred_in = None if job.traceparent is None else _span_of(job.traceparent)
        links = [] if deferred_in is None else [Link(deferred_in.get_span_context())]
        with self._tracer.start_as_current_span(
            "purgatory.job",
            # Not what was current where the process was opened, or where the job was woken.
            context=Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        ):
            yield


def _note_deferred(job_id: str) -> None:
    get_current_span().set_attribute("purgatory.job.id", job_id)
