"""Tracing of the service, by OpenTelemetry as its own variables configure it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from fastapi import FastAPI

from purgatory import Purgatory

_EXPORTERS = "opentelemetry_traces_exporter"


def fastapi_options() -> dict[str, Any]:
    """Return the options with which FastAPI does not trace requests: their paths contain keys.

    If an SDK is set up already, as by `opentelemetry-instrument`, requests are traced there.
    """
    # Older versions trace nothing; fastapi.telemetry needs the package that is imported here.
    if find_spec("fastapi.telemetry") is None:
        return {}
    from opentelemetry import trace

    is_ours = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return {"telemetry": {"tracing": False}} if is_ours else {}


def trace_service(app: FastAPI, purgatory: Purgatory) -> None:
    """Trace `purgatory`, and export what is left when `app` has shut down.

    A process in which an SDK is set up already, as by `opentelemetry-instrument`, uses that.

    Raises ImportError for a missing package, and ValueError for an exporter that is not installed.
    """
    # Imported here, and this one first, which names the extra: without tracing, none is needed.
    from purgatory.tracing import PurgatoryTracing

    # isort: split
    from opentelemetry import trace

    PurgatoryTracing(purgatory)
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(_sdk_provider(os.environ))
    flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is None:
        return
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with inner(app) as state:
            yield state
        # A process that a signal stops may end without the functions of `atexit`.
        await asyncio.to_thread(flush)

    app.router.lifespan_context = lifespan


def _sdk_provider(environment: Mapping[str, str]) -> Any:
    """Return a provider of the SDK; sampler, resource and limits it reads by itself."""
    try:
        from opentelemetry.sdk.trace import TracerProvider  # type: ignore[import-not-found] # opt.
        from opentelemetry.sdk.trace.export import (  # type: ignore[import-not-found] # optional
            BatchSpanProcessor,
        )
    except ImportError as exc:
        raise ImportError(
            "there is no OpenTelemetry SDK: "
            "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from exc
    provider = TracerProvider()
    for name in _exporter_names(environment):
        found = entry_points(group=_EXPORTERS, name=name)
        if not found:
            package = f"opentelemetry-exporter-{name.replace('_', '-')}"
            raise ValueError(
                f"OTEL_TRACES_EXPORTER needs the exporter {name!r}, which is not installed: "
                f"pip install {package}, or set it to none"
            )
        exporter = next(iter(found)).load()
        provider.add_span_processor(BatchSpanProcessor(exporter()))
    return provider


def _exporter_names(environment: Mapping[str, str]) -> list[str]:
    """Return the exporters by the names of their packages; OTLP over HTTP by default."""
    protocol = (
        environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    # The specification names the protocol, packages an exporter for each.
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    names = [name.strip() for name in environment.get("OTEL_TRACES_EXPORTER", "otlp").split(",")]
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]
