"""The metrics of a purgatory, in a registry, over HTTP, and in the files of workers."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from purgatory import LimitReachedError, Limits, Purgatory
from purgatory.fastapi import ALLOW_ANYONE, BearerTokens, install
from purgatory.jobs import Again, JobContext, JobState, MemoryJobStore
from purgatory.jobs.model.job import HandlerState
from purgatory.metrics import PurgatoryCollector, catalog
from purgatory.metrics.families import STALE_MS, WorkerFiles
from purgatory.metrics.measure import Snapshot
from tests.unit.exchange import Exchange, Reply

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]
TOKENS = "token-that-scrapes metrics;token-of-an-operator operate;token-of-a-client wait:*"


def values(text: str) -> Values:
    """Return the value of each series."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in prometheus(text)
        for sample in family.samples
    }


def value(found: Values, name: str, worker: str | None = "0", **labels: str) -> float | None:
    if worker is not None:
        labels["worker"] = worker
    return found.get((name, frozenset(labels.items())))


async def get(app: FastAPI, path: str, **headers: str) -> Reply:
    return await Exchange(path, headers, body=[b""]).begin(app).reply()


async def used() -> tuple[Purgatory, PurgatoryCollector]:
    """A purgatory, to be opened, that has done a bit of everything."""
    purgatory = Purgatory(jobs=MemoryJobStore(), limits=Limits(max_parked=2))
    collector = PurgatoryCollector(purgatory)
    return purgatory, collector


async def use(purgatory: Purgatory) -> None:
    """Two fired, one expired, one cancelled, one refused, one job done, one cancelled."""
    done = asyncio.Event()

    @purgatory.handler("ship")
    async def ship(job: object) -> None:
        done.set()

    parked = [asyncio.ensure_future(purgatory.park("a", timeout=60)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(LimitReachedError):
        await purgatory.park("a", timeout=60)
    await purgatory.fire("a")
    await asyncio.gather(*parked)
    parked = [asyncio.ensure_future(purgatory.park("b", timeout=60))]
    await asyncio.sleep(0)
    await purgatory.cancel("b")
    await asyncio.gather(*parked)
    await purgatory.park("c", timeout=0.002)
    await (await purgatory.defer("ship", delay=0)).wait(timeout=10)
    await (await purgatory.defer("ship", delay=900)).cancel()


async def test_each_thing_is_counted_where_it_belongs() -> None:
    """As the statistics have it, with kinds, outcomes, handlers and states as labels."""
    purgatory, collector = await used()
    async with purgatory:
        await use(purgatory)
        parked = asyncio.ensure_future(purgatory.park("d", timeout=60))
        await asyncio.sleep(0)
        text, content_type = await collector.text()
        parked.cancel()
        found = values(text.decode())
        assert content_type.startswith("text/plain; version=")
        assert value(found, "purgatory_parked_by_kind", kind="park") == 1
        assert value(found, "purgatory_parked_by_kind", kind="job-wait") == 0
        for kind, outcome, count in (
            ("park", "fired", 2),
            ("park", "cancelled", 1),
            ("park", "expired", 1),
            ("job-wait", "fired", 1),
        ):
            waits = value(found, "purgatory_wait_seconds_count", kind=kind, outcome=outcome)
            assert waits == count
        for outcome, count in (("fired", 3), ("cancelled", 1), ("expired", 1), ("drained", 0)):
            assert value(found, "purgatory_waits_total", outcome=outcome) == count
        assert value(found, "purgatory_lateness_seconds_count") == 1
        assert value(found, "purgatory_fires_total") == purgatory.statistics().fires == 1
        assert value(found, "purgatory_refused_total", limit="max_parked") == 1
        assert value(found, "purgatory_limit", limit="max_parked") == 2
        assert value(found, "purgatory_ready") == 1
        ended = "purgatory_jobs_ended_total"
        assert value(found, ended, handler="ship", state="done") == 1
        assert value(found, ended, handler="ship", state="cancelled") == 1
        assert value(found, "purgatory_jobs", None, state="done") == 1
        assert value(found, "purgatory_job_lateness_seconds_count") == 1
        assert value(found, "purgatory_wake_ups_total") == purgatory.statistics().wake_ups


async def test_jobs_are_counted_by_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait, and those of names that are unknown together; not at every scrape."""
    store = MemoryJobStore()
    purgatory = Purgatory(jobs=store)
    collector = PurgatoryCollector(purgatory)
    purgatory.handled_elsewhere(["ship", "bill"])
    counted = 0
    count = store.handler_counts

    async def note_count() -> dict[HandlerState, int]:
        nonlocal counted
        counted += 1
        return await count() | {
            HandlerState("elsewhere", JobState.WAITING): 5,
            HandlerState("theirs", JobState.WAITING, "max_running"): 2,
        }

    monkeypatch.setattr(store, "handler_counts", note_count)
    async with purgatory:
        for _ in range(3):
            await purgatory.defer("ship", delay=900)
        for _ in range(5):
            found = values((await collector.text())[0].decode())
        name = "purgatory_handler_jobs"
        assert value(found, name, None, handler="ship", state="waiting") == 3
        assert value(found, name, None, handler="other", state="waiting") == 7
        blocked = {"handler": "other", "blocked_by": "max_running"}
        assert value(found, f"{name}_blocked", None, **blocked) == 2
        assert value(found, "purgatory_jobs_blocked", None) == 0
        assert value(found, "purgatory_jobs", None, state="blocked") is None
        assert counted == 1


async def test_a_store_with_too_many_jobs_to_count_by_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no such metric, and all others."""
    store = MemoryJobStore()

    async def give_up() -> None: ...

    monkeypatch.setattr(store, "handler_counts", give_up)
    purgatory = Purgatory(jobs=store)
    collector = PurgatoryCollector(purgatory)
    async with purgatory:
        found = values((await collector.text())[0].decode())
    assert not any(name == "purgatory_handler_jobs" for name, _ in found)
    assert value(found, "purgatory_jobs", None, state="waiting") == 0


async def test_a_job_that_waits_again_ends_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each round has its lateness; the job is counted with its final state only."""
    purgatory, collector = await used()
    async with purgatory:

        @purgatory.handler("ship")
        async def ship(job: JobContext) -> Again | None:
            return job.again(delay=0) if job.round < 2 else None

        await (await purgatory.defer("ship", delay=0)).wait(timeout=10)
        found = values((await collector.text())[0].decode())
        ended = "purgatory_jobs_ended_total"
        assert value(found, ended, handler="ship", state="done") == 1
        assert value(found, ended, handler="ship", state="waiting") is None
        assert value(found, "purgatory_job_lateness_seconds_count") == 3
    assert "failed with job" not in caplog.text


async def test_every_metric_of_the_catalog_is_valid() -> None:
    """To both parsers of prometheus_client; what is shown is in the catalog."""
    purgatory, collector = await used()
    async with purgatory:
        await use(purgatory)
        await purgatory.defer("ship", delay=900)
        plain = (await collector.text())[0].decode()
        accepted = "application/openmetrics-text; version=1.0.0"
        open_text, content_type = await collector.text(accepted)
        assert content_type.startswith("application/openmetrics-text")
    names = {metric.name for metric in catalog.METRICS}
    # No signals are shared, and no job is blocked.
    names -= {each for each in names if each.startswith("purgatory_signals_")}
    names.remove("purgatory_handler_jobs_blocked")
    assert {family.name for family in prometheus(plain)} == names
    parsed: Iterable[Metric] = openmetrics(open_text.decode())  # type: ignore[no-untyped-call] # it has no types
    assert {family.name for family in parsed} == names


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Prometheus")
async def test_promtool_accepts_the_metrics() -> None:
    """Names, units and help texts are as Prometheus advises."""
    purgatory, collector = await used()
    async with purgatory:
        await use(purgatory)
        text, _ = await collector.text()
    checked = await asyncio.to_thread(
        subprocess.run,
        ["promtool", "check", "metrics"],
        input=text,
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


async def test_a_registry_of_ones_own_collects_from_any_thread() -> None:
    """From the event loop, from a thread beside it, and while it is closed."""
    purgatory, collector = await used()
    registry = CollectorRegistry()
    registry.register(collector)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(PurgatoryCollector(Purgatory(name="other")))
    async with purgatory:
        await use(purgatory)
        found = values((await asyncio.to_thread(generate_latest, registry)).decode())
        assert value(found, "purgatory_fires_total") == 1
        assert value(found, "purgatory_jobs", None, state="done") == 1
        found = values(generate_latest(registry).decode())
        assert value(found, "purgatory_fires_total") == 1
        assert value(found, "purgatory_jobs", None, state="done") == 1
    found = values((await asyncio.to_thread(generate_latest, registry)).decode())
    assert value(found, "purgatory_fires_total") == 1
    assert value(found, "purgatory_ready") == 0


async def test_counters_outlive_a_close() -> None:
    """Of the wheel, too, whose own count begins anew."""
    purgatory, collector = await used()
    before: Values = {}
    for _ in range(3):
        async with purgatory:
            await purgatory.park("k", timeout=0.002)
            found = values((await collector.text())[0].decode())
        for series, count in before.items():
            if series[0].endswith(("_total", "_count", "_bucket", "_sum")):
                assert found[series] >= count, series
        before = found
    assert value(before, "purgatory_waits_total", outcome="expired") == 3
    wakes = value(before, "purgatory_wake_ups_total")
    assert wakes is not None and wakes >= 3


async def test_workers_that_share_a_directory_show_the_same(tmp_path: Path) -> None:
    """Each by its number; one that ended keeps its counters and has no gauges."""
    first, second = Purgatory("one"), Purgatory("two")
    one = PurgatoryCollector(first, directory=tmp_path / "new")
    two = PurgatoryCollector(second, directory=tmp_path / "new")
    async with one, first:
        async with two, second:
            await second.fire("k")
            _, _ = await two.text()
            found = values((await one.text())[0].decode())
            assert value(found, "purgatory_fires_total", "1") == 1
            assert value(found, "purgatory_fires_total", "0") == 0
            assert value(found, "purgatory_parked", "1") == 0
            await second.fire("k")
        found = values((await one.text())[0].decode())
        assert value(found, "purgatory_fires_total", "1") == 2
        assert value(found, "purgatory_parked", "1") is None
        assert value(found, "purgatory_parked", "0") == 0


async def test_a_worker_that_writes_no_more_has_no_gauges(tmp_path: Path) -> None:
    """It is stuck, or was killed and not replaced."""
    purgatory = Purgatory()
    stuck = WorkerFiles(tmp_path)
    stuck.claim()
    collector = PurgatoryCollector(purgatory, directory=tmp_path)
    async with collector, purgatory:
        for age_ms, is_shown in ((0, True), (STALE_MS, False)):
            snapshot = Snapshot(at_ms=purgatory.clock.wall_ms() - age_ms)
            snapshot.put(catalog.PARKED, 7)
            snapshot.put(catalog.FIRES, 5)
            stuck.write(snapshot, age_ms)
            found = values((await collector.text())[0].decode())
            assert value(found, "purgatory_fires_total") == 5
            assert (value(found, "purgatory_parked") == 7) is is_shown


async def test_installed_metrics_are_for_those_who_may_read_them() -> None:
    """A token may have the scope `metrics` and no other; an operator may read them as well."""
    app = FastAPI()
    install(app, Purgatory(), authorize=BearerTokens.from_text(TOKENS), metrics=True)
    async with app.router.lifespan_context(app):
        assert (await get(app, "/purgatory/metrics")).status == 401
        for token, status in (("scrapes", 200), ("an-operator", 200), ("a-client", 403)):
            name = f"token-{'of-' if token[0] == 'a' else 'that-'}{token}"
            reply = await get(app, "/purgatory/metrics", Authorization=f"Bearer {name}")
            assert reply.status == status, token
        header = "Bearer token-that-scrapes"
        assert (await get(app, "/purgatory/statistics", Authorization=header)).status == 403


async def test_without_authorize_metrics_are_closed() -> None:
    """And without `metrics`, there are none at all."""
    closed, none = FastAPI(), FastAPI()
    install(closed, Purgatory(), metrics=True)
    install(none, Purgatory(), authorize=ALLOW_ANYONE)
    async with closed.router.lifespan_context(closed), none.router.lifespan_context(none):
        assert (await get(closed, "/purgatory/metrics")).status == 403
        assert (await get(none, "/purgatory/metrics")).status == 404


def test_arguments_that_make_no_sense() -> None:
    """Each is said where it is given."""
    with pytest.raises(TypeError, match="metrics is 'yes': give True, or a PurgatoryCollector"):
        install(FastAPI(), Purgatory(), authorize=ALLOW_ANYONE, metrics="yes")  # type: ignore[arg-type] # on purpose
    with pytest.raises(ValueError, match="'metrics', not for everyone"):
        install(FastAPI(), Purgatory(), endpoints={"watch"}, metrics=True)
    with pytest.raises(ValueError, match="are off: give metrics=True"):
        install(FastAPI(), Purgatory(), authorize=ALLOW_ANYONE, endpoints={"metrics"})


async def test_an_open_purgatory_takes_no_listener() -> None:
    """It might have parked operations that the listener would not know."""
    purgatory = Purgatory()
    async with purgatory:
        with pytest.raises(RuntimeError, match="add listeners before"):
            PurgatoryCollector(purgatory)


def fires(value: int) -> Snapshot:
    snapshot = Snapshot()
    snapshot.put(catalog.FIRES, value)
    return snapshot


def test_workers_take_the_lowest_free_place(tmp_path: Path) -> None:
    """And get what was last written there."""
    first, second, third = (WorkerFiles(tmp_path) for _ in range(3))
    assert first.claim() is None and second.claim() is None
    assert (first.slot, second.slot) == (0, 1)
    first.write(fires(1), 1)
    second.write(fires(2), 1)
    assert first.read_all() == second.read_all() == {0: fires(1), 1: fires(2)}
    first.release()
    assert third.claim() == fires(1)
    assert third.slot == 0


def test_an_older_snapshot_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    """Two threads of a worker may write in any order."""
    files = WorkerFiles(tmp_path)
    files.claim()
    files.write(fires(2), 2)
    files.write(fires(1), 1)
    assert files.read_all() == {0: fires(2)}
    files.release()
    files.write(fires(3), 3)
    assert files.read_all() == {0: fires(2)}


def test_what_others_leave_in_the_directory_does_not_matter(tmp_path: Path) -> None:
    """Half a snapshot of a full disk, other files, folders."""
    (tmp_path / "worker-7.json").write_bytes(b'{"format": 1')
    (tmp_path / "notes.txt").write_text("no snapshot")
    (tmp_path / "folder").mkdir()
    files = WorkerFiles(tmp_path)
    files.claim()
    files.write(fires(1), 1)
    assert files.read_all() == {0: fires(1)}
