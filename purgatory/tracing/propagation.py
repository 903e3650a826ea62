"""Trace contexts of OpenTelemetry as W3C `traceparent`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    format_span_id,
    format_trace_id,
    get_current_span,
    use_span,
)

_VERSION: Final = "00"


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
        trace_id, span_id = format_trace_id(context.trace_id), format_span_id(context.span_id)
        return f"{_VERSION}-{trace_id}-{span_id}-{context.trace_flags:02x}"

    def restore(self, traceparent: str | None) -> AbstractContextManager[object]:
        """Return a context in which the current span is that of another process, or none."""
        if traceparent is None:
            return use_span(INVALID_SPAN)
        return use_span(NonRecordingSpan(span_context(traceparent)))


def span_context(traceparent: str) -> SpanContext:
    """Return the context of a span in another process; `traceparent` is a valid one, or ignored."""
    try:
        _, trace_id, span_id, flags = traceparent.split("-")
        return SpanContext(
            int(trace_id, 16),
            int(span_id, 16),
            is_remote=True,
            trace_flags=TraceFlags(int(flags, 16)),
        )
    except ValueError:
        # What another process has stored: no link, rather than a wait that does not end.
        return SpanContext(0, 0, is_remote=True)
