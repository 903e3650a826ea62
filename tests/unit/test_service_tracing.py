"""The service's setting for tracing: which SDK and exporters it takes, and what is missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry import trace

from app.main import create_app
from app.settings import Settings
from tests.kept_spans import Provider

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tracing=True, data_dir=tmp_path)


class Flushed(Provider):
    """Notes which spans had ended when it was flushed."""

    flushed: list[str] | None = None

    def force_flush(self) -> None:
        self.flushed = [span.attributes["purgatory.outcome"] for span in self.spans]


class Sdk:
    """What the service uses of the SDK, in place of its modules."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processors: list[Any] = []
        self.provider: Any = None
        provider, export = ModuleType("provider"), ModuleType("export")
        provider.TracerProvider = lambda: self  # type: ignore[attr-defined] # a stand-in
        export.BatchSpanProcessor = lambda exporter: exporter  # type: ignore[attr-defined] # same
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", provider)
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", export)
        monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
        monkeypatch.setattr(trace, "set_tracer_provider", self._set)
        monkeypatch.setattr("app.tracing.entry_points", self._entry_points)

    def add_span_processor(self, processor: Any) -> None:
        self.processors.append(processor)

    def load(self) -> Any:
        return lambda: self.named

    def _set(self, provider: Any) -> None:
        self.provider = provider

    def _entry_points(self, group: str, name: str) -> list[Any]:
        assert group == "opentelemetry_traces_exporter"
        self.named = name
        return [] if name == "nowhere" else [self]


def test_an_sdk_that_is_missing_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the packages to install, in one line."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ValueError, match=r"^PURGATORY_TRACING: there is no OpenTelemetry SDK: pip"):
        create_app(settings)


@pytest.mark.parametrize(
    ("environment", "exporters"),
    [
        ({}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp_proto_http"]),
        ({"OTEL_TRACES_EXPORTER": "none"}, []),
    ],
)
def test_exporters_are_those_of_the_variables(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    exporters: list[str],
) -> None:
    """As the specification has them; OTLP over HTTP by default."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    sdk = Sdk(monkeypatch)
    create_app(settings)
    assert (sdk.provider, sdk.processors) == (sdk, exporters)


def test_an_exporter_that_is_missing_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the variable that asks for it."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nowhere")
    Sdk(monkeypatch)
    wanted = r"PURGATORY_TRACING: OTEL_TRACES_EXPORTER needs .*'nowhere'.* pip install .*-nowhere"
    with pytest.raises(ValueError, match=wanted):
        create_app(settings)


async def test_an_sdk_that_is_set_up_is_taken_and_flushed_last(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `opentelemetry-instrument` does it; with the spans of what was drained."""
    provider = Flushed()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        purgatory = app.state.purgatory
        await purgatory.park("k", timeout=0.001)
        assert provider.flushed is None
    assert provider.flushed == ["expired"]


async def test_requests_whose_paths_have_keys_are_not_traced(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI traces them by itself once the service has set up an SDK."""
    Sdk(monkeypatch)
    app = create_app(settings)
    assert await _spans_of_a_watch(app, monkeypatch) == []


@pytest.mark.skipif(find_spec("fastapi.telemetry") is None, reason="FastAPI traces nothing itself")
async def test_requests_are_traced_by_an_sdk_that_is_set_up(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who starts the service by `opentelemetry-instrument` asks for them."""
    monkeypatch.setattr(trace, "get_tracer_provider", Flushed)
    app = create_app(settings)
    assert "GET" in await _spans_of_a_watch(app, monkeypatch)


async def _spans_of_a_watch(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    provider = Flushed()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        response = await client.get("/purgatory/watch/secret?wait=0")
    assert response.status_code == 200
    return [span.name.partition(" ")[0] for span in provider.spans]


def test_without_the_setting_nothing_is_traced(tmp_path: Path) -> None:
    """Nor imported."""
    app = create_app(Settings(data_dir=tmp_path))
    assert app.state.purgatory.handlers.propagation is None
