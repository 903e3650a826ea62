"""Steps are repeated while the store is out of reach."""

from __future__ import annotations

import asyncio

import pytest

from purgatory.jobs import RetryPolicy, StoreError, StoreUnavailableError
from purgatory.jobs.worker.store_retry import StoreRetry
from tests.unit.jobs.worker.runs import now_ms


class Flaky:
    """A step that fails a number of times."""

    def __init__(self, failures: int, error: StoreError) -> None:
        self.failures = failures
        self.error = error

    async def __call__(self) -> str:
        if self.failures:
            self.failures -= 1
            raise self.error
        return "done"


async def test_a_step_is_repeated_after_the_delays_of_the_policy() -> None:
    """The end of the outage is announced once, before the caller goes on."""
    available_at: list[int] = []
    policy = RetryPolicy(first_ms=100, max_ms=300, jitter=0)
    retry = StoreRetry(lambda: available_at.append(now_ms()), policy=policy)
    start_ms = now_ms()
    assert await retry.call("claim", Flaky(4, StoreUnavailableError("gone"))) == "done"
    [ended_ms] = available_at
    assert 900 <= ended_ms - start_ms <= 908
    assert (retry.outages, retry.error) == (1, None)


async def test_an_outage_lasts_until_every_step_succeeds() -> None:
    """A store may accept reads and refuse writes."""
    available: list[str] = []
    retry = StoreRetry(lambda: available.append("again"))
    writing = Flaky(10**9, StoreUnavailableError("gone"))
    task = asyncio.create_task(retry.call("finish", writing))
    await asyncio.sleep(1)
    assert await retry.call("now_ms", Flaky(1, StoreUnavailableError("slow"))) == "done"
    assert (retry.error, retry.outages, available) == ("gone", 1, [])
    writing.failures = 0
    assert await task == "done"
    assert (retry.error, available) == (None, ["again"])


async def test_an_error_of_one_step_is_raised() -> None:
    """It is not an outage."""
    retry = StoreRetry(lambda: None)
    with pytest.raises(StoreError, match="no"):
        await retry.call("start", Flaky(1, StoreError("no")))
    assert (retry.outages, retry.error) == (0, None)
