"""Spans of OpenTelemetry's API, by a provider that keeps them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, Tracer, TracerProvider


class Span(NonRecordingSpan):
    """A span that keeps what it is given."""

    def __init__(self, context: SpanContext, parent: SpanContext, name: str) -> None:
        super().__init__(context)
        self.parent = parent
        self.name = name
        self.attributes: dict[str, Any] = {}
        self.links: list[SpanContext] = []
        self.has_ended = False

    def is_recording(self) -> bool:
        return not self.has_ended

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        self.links.append(context)

    def end(self, end_time: int | None = None) -> None:
        assert not self.has_ended
        self.has_ended = True


class Provider(TracerProvider, Tracer):
    """A provider of one tracer, itself."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._ids = itertools.count(1)

    def get_tracer(self, *args: Any, **options: Any) -> Tracer:
        return self

    def start_span(self, name: str, context: Any = None, *args: Any, **options: Any) -> Span:
        number = next(self._ids)
        own = SpanContext(number, number, is_remote=False, trace_flags=TraceFlags(1))
        span = Span(own, trace.get_current_span(context).get_span_context(), name)
        span.attributes |= options.get("attributes") or {}
        links: Sequence[trace.Link] = options.get("links") or ()
        span.links += [link.context for link in links]
        self.spans.append(span)
        return span

    @contextmanager
    def start_as_current_span(  # type: ignore[override] # a generator is what it makes of one, too
        self, name: str, *args: Any, **options: Any
    ) -> Iterator[Span]:
        span = self.start_span(name, *args, **options)
        with trace.use_span(span, end_on_exit=True):
            yield span

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def ids(context: SpanContext) -> tuple[int, int]:
    """What names a span, also in another process."""
    return context.trace_id, context.span_id
