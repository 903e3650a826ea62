"""Callbacks of one client do not hold up those of others, nor the application's own handlers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.jobs import JobHandle, JobState, MemoryJobStore
from purgatory.jobs.callbacks import CALLBACK, Callback
from purgatory.jobs.callbacks.webhook import Webhook
from purgatory.jobs.worker import JobStatistics
from tests.acceptance.callback_receiver import CallbackReceiver, receiving
from tests.patience import PATIENCE_S, until

LOW, VICTIM = "token-of-an-attacker", "token-of-the-victim"


class SlowLookUps:
    """Looks names up, those of `silent` hosts not before they may end."""

    def __init__(self) -> None:
        self.silent: list[str] = []
        self.may_end = threading.Event()

    def __call__(self, host: str, port: int, **options: Any) -> list[Any]:
        if host.startswith("silent"):
            self.silent.append(host)
            self.may_end.wait(PATIENCE_S)
            raise OSError("no answer")
        return list(socket.getaddrinfo(host, port, **options))


@pytest.fixture
def receiver() -> Iterator[CallbackReceiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def look_ups() -> Iterator[SlowLookUps]:
    look_ups = SlowLookUps()
    yield look_ups
    look_ups.may_end.set()


async def add(purgatory: Purgatory, owner: str | None, *urls: str) -> list[JobHandle]:
    """Add callbacks that are due now, as `owner` would over HTTP."""
    specs = [
        purgatory.jobs.spec(CALLBACK, Callback.of(url), delay=0, max_attempts=1) for url in urls
    ]
    await purgatory.jobs.add([replace(spec, owner=owner) for spec in specs])
    return [purgatory.job(spec.id) for spec in specs]


def jobs_of(purgatory: Purgatory) -> JobStatistics:
    statistics = purgatory.statistics().jobs
    assert statistics is not None
    return statistics


async def test_silent_names_hold_up_nobody_else(
    receiver: CallbackReceiver, look_ups: SlowLookUps
) -> None:
    """A callback that may fail once only is sent, though 300 names are looked up for ever."""
    purgatory = Purgatory(jobs=MemoryJobStore())
    webhook = Webhook(timeout=PATIENCE_S, allow_private=True, look_up=look_ups)
    purgatory.handler(CALLBACK)(webhook)
    async with purgatory:
        await add(purgatory, LOW, *[f"http://silent{n}.example/" for n in range(300)])
        await until(lambda: len(look_ups.silent) == 100)
        [job] = await add(purgatory, VICTIM, f"http://localhost:{receiver.port}/")
        assert (await job.wait(PATIENCE_S)).state is JobState.DONE
        assert len(look_ups.silent) == 100
        look_ups.may_end.set()


async def test_a_look_up_keeps_its_slot_for_as_long_as_it_takes(look_ups: SlowLookUps) -> None:
    """Its callback has failed long before, and others begin with a slot and a thread in hand."""
    purgatory = Purgatory(jobs=MemoryJobStore())
    purgatory.handler(CALLBACK)(Webhook(timeout=0.1, max_running=4, look_up=look_ups))
    async with purgatory:
        jobs = await add(purgatory, LOW, *[f"http://silent{n}.example/" for n in range(6)])
        await until(lambda: jobs_of(purgatory).failed == 2)
        await until(lambda: jobs_of(purgatory).running == 0)
        assert (len(look_ups.silent), jobs_of(purgatory).waiting) == (2, 4)
        assert sorted([(await job.get()).attempt for job in jobs]) == [0, 0, 0, 0, 1, 1]
        look_ups.may_end.set()
        await until(lambda: jobs_of(purgatory).failed == 6)
