"""Spans of waits and jobs, by a provider that keeps them."""

from __future__ import annotations

import asyncio

from opentelemetry import trace
from opentelemetry.trace import SpanContext

from purgatory import Purgatory
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.tracing import PurgatoryTracing
from tests.cases import cases
from tests.kept_spans import Provider, ids


async def test_a_wait_has_its_outcome_and_a_link_to_its_fire() -> None:
    """Its parent is the request that parks, the link the request that fires."""
    provider = Provider()
    purgatory = Purgatory()
    PurgatoryTracing(purgatory, tracer_provider=provider, keys=True)

    async def request() -> None:
        with provider.start_as_current_span("request"):
            await purgatory.park("order:42", timeout=60)

    async with purgatory:
        parked = asyncio.ensure_future(request())
        await asyncio.sleep(0)
        with provider.start_as_current_span("payment") as payment:
            await purgatory.fire("order:42")
        await parked
        [wait], [begun] = provider.named("purgatory.wait"), provider.named("request")
        assert wait.has_ended and wait.parent == begun.get_span_context()
        assert wait.links == [payment.get_span_context()]
        assert wait.attributes == {
            "purgatory.kind": "park",
            "purgatory.timeout_ms": 60_000,
            "purgatory.keys": ["order:42"],
            "purgatory.fired_key": "order:42",
            "purgatory.outcome": "fired",
        }


async def test_every_wait_ends_its_span() -> None:
    """Whatever its outcome; without a fire there is no link, and no key unless asked for."""
    provider = Provider()
    purgatory = Purgatory()
    PurgatoryTracing(purgatory, tracer_provider=provider)
    async with purgatory:
        await purgatory.park("a", timeout=0.002)
        parked = [asyncio.ensure_future(purgatory.park(key, timeout=60)) for key in "bc"]
        await asyncio.sleep(0)
        await purgatory.cancel("b")
    await asyncio.gather(*parked)
    outcomes = [span.attributes.get("purgatory.outcome") for span in provider.spans]
    assert outcomes == ["expired", "cancelled", "drained"]
    assert all(span.has_ended and not span.links for span in provider.spans)
    assert all("purgatory.keys" not in span.attributes for span in provider.spans)


@cases("is_async", [True, False])
async def test_the_run_of_a_job_is_linked_to_its_defer(is_async: bool) -> None:
    """It is the current span in the handler, also in a thread."""
    provider = Provider()
    purgatory = Purgatory(jobs=MemoryJobStore())
    PurgatoryTracing(purgatory, tracer_provider=provider)
    seen: list[SpanContext] = []

    def ship(job: JobContext) -> None:
        seen.append(trace.get_current_span().get_span_context())

    async def ship_later(job: JobContext) -> None:
        ship(job)

    purgatory.handler("ship")(ship_later if is_async else ship)
    with provider.start_as_current_span("start"):
        async with purgatory:
            with provider.start_as_current_span("order") as order:
                job = await purgatory.defer("ship", delay=0)
            await job.wait(timeout=30)
    [run] = provider.named("purgatory.job")
    # Neither that which is current where the process was opened, nor the span of the defer.
    assert not run.parent.is_valid
    assert seen == [run.get_span_context()]
    assert [ids(link) for link in run.links] == [ids(order.get_span_context())] and run.has_ended
    assert order.attributes["purgatory.job.id"] == run.attributes["purgatory.job.id"] == job.id
    assert run.attributes["purgatory.job.attempt"] == 1


async def test_without_an_sdk_nothing_is_kept() -> None:
    """The API's own spans record nothing, and a job that is stored says nothing of them."""
    purgatory = Purgatory(jobs=MemoryJobStore())
    PurgatoryTracing(purgatory, tracer_provider=trace.NoOpTracerProvider())
    purgatory.handled_elsewhere(["note"])
    async with purgatory:
        assert not await purgatory.park("a", timeout=0.002)
        job = await purgatory.defer("note", delay=60)
        assert (await job.get()).traceparent is None
