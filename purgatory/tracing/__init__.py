"""Spans of waits and of runs of jobs, by OpenTelemetry. Extra `tracing`.

    PurgatoryTracing(purgatory)

It needs the API only: without an SDK, or for what is not sampled, spans cost next to nothing.
"""

try:
    import opentelemetry.trace as _trace  # noqa: F401  # only to say which extra is missing
except ImportError as exc:
    raise ImportError(
        "this needs opentelemetry-api: pip install 'fastapi-purgatory[tracing]'"
    ) from exc

from purgatory.tracing.propagation import SpanPropagation
from purgatory.tracing.purgatory_tracing import PurgatoryTracing

__all__ = ["PurgatoryTracing", "SpanPropagation"]
