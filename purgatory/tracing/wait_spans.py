"""A span for each wait."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from opentelemetry.trace import Span, Tracer, get_current_span

from purgatory.event_loop.inspection import Inspection
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.operations.operation_listeners import kind_of
from purgatory.status import Status


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
