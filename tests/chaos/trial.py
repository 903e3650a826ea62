"""One storm over one store, and the verdict on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from purgatory.jobs import Job, JobStore
from purgatory.jobs.model.job import JobFilter
from tests.chaos.ledger import RunBook
from tests.chaos.machines import Machine, PostgresMachine, SqliteMachine, ValkeyMachine
from tests.chaos.service import make_store
from tests.chaos.storm import Plan, Storm
from tests.chaos.verdict import Verdict, judge, judge_ticks
from tests.valkey_server import ValkeyServer

MACHINES: dict[str, Callable[[Path], Machine]] = {
    "sqlite": SqliteMachine,
    "postgresql": PostgresMachine,
    "valkey": ValkeyMachine,
}
PAGE = 500


async def run_trial(kind: str, plan: Plan, folder: Path, say: Callable[[str], object]) -> Verdict:
    """Let `plan` blow over a new store of a kind; keep everything under `folder`."""
    machine = MACHINES[kind](folder)
    machine.start()
    # Of its own, and not killed: tests/chaos/signals does that.
    (folder / "signals").mkdir()
    signals = ValkeyServer(folder / "signals").start()
    storm = Storm(plan, machine, signals.url, folder, say)
    try:
        await storm.blow()
        await storm.calm_down()
        store = make_store(machine.url)
        await store.open()
        try:
            stored = await _all_jobs(store)
        finally:
            await store.close()
    finally:
        await storm.close()
        signals.close()
        machine.close()
    ledger = storm.ledger
    say(
        f"{kind}: {ledger.service_kills} services and {ledger.store_kills} stores killed, "
        f"{ledger.freezes} services stopped, {ledger.cuts} links cut, {ledger.stalls} stalled, "
        f"{len(ledger.pauses)} pauses, {ledger.retried} jobs retried, "
        f"{ledger.refused} requests refused"
    )
    ticks = [job for job in stored if job.handler == "tick"]
    others = [job for job in stored if job.handler != "tick"]
    verdict = judge(ledger, RunBook.read(folder), others, RunBook.read_spans(folder))
    verdict.faults += judge_ticks(ticks, RunBook.read_ticks(folder))
    say(f"{kind}: {len(ticks)} runs of a periodic job")
    return verdict


async def _all_jobs(store: JobStore) -> list[Job]:
    jobs: list[Job] = []
    after: str | None = None
    while True:
        page = await store.query(JobFilter(), after=after, limit=PAGE)
        jobs += page.jobs
        if page.next is None:
            return jobs
        after = page.next
