"""Parks on signals that several processes share: their cursors, and losses of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from purgatory import CursorExpiredError, Outcome, Purgatory, PurgatoryClosedError, Status
from purgatory.testing import current_clock
from tests.patience import until_in_turns
from tests.unit.shared_logs import Logs
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture

pytestmark = pytest.mark.anyio


@pytest.fixture
def logs() -> Logs:
    return Logs()


@pytest.fixture
async def purgatory(logs: Logs) -> AsyncIterator[Purgatory]:
    async with Purgatory(signals=logs, clock=current_clock()) as opened:
        yield opened
        assert (opened.parked, opened.watched_keys()) == (0, {})


async def parked(
    purgatory: Purgatory, *keys: str, until: Callable[[], object] | None = None
) -> asyncio.Task[Outcome]:
    task = asyncio.create_task(purgatory.park(*keys, timeout=25, until=until))
    while purgatory.parked == 0:
        assert not task.done(), task.result()
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("count", [1, 32, 33, 100])
async def test_an_entry_of_the_log_ends_all_waits_on_its_key(
    logs: Logs, purgatory: Purgatory, count: int
) -> None:
    """However many there are: very many in several turns of the loop. It says how many."""
    tasks = [asyncio.create_task(purgatory.park("a", timeout=25)) for _ in range(count)]
    await until_in_turns(lambda: purgatory.parked == count)
    completed = logs.fire("a")
    assert (completed if isinstance(completed, int) else await completed) == count
    assert {outcome.status for outcome in await asyncio.gather(*tasks)} == {Status.FIRED}


@pytest.mark.parametrize("others", [(), ("b",), ("c",)])
async def test_a_park_without_a_cursor_waits_for_what_fires_later(
    logs: Logs, purgatory: Purgatory, others: tuple[str, ...]
) -> None:
    """Not for what the log has already, whether the other keys are in that log or in another."""
    assert logs.shard_of("b") != logs.shard_of("a") == logs.shard_of("c"), "other keys would do"
    logs.fire("a")
    task = await parked(purgatory, "a", *others)
    logs.fire("a")
    outcome = await task
    assert (outcome.key, outcome.value) == ("a", 2)


@pytest.mark.parametrize("is_drained", [False, True])
async def test_a_loss_that_is_found_at_the_end(
    logs: Logs, purgatory: Purgatory, is_drained: bool
) -> None:
    """A wait that was not tried since the loss is outdated too, whatever ends it."""
    task = await parked(purgatory, "a")
    logs.lose("a", is_checked=False)
    if is_drained:
        await purgatory.drain()
    with pytest.raises(CursorExpiredError):
        await task
    counts = purgatory.statistics()
    assert (counts.outdated, counts.expired, counts.drained) == (1, 0, 0)


async def test_a_predicate_outlives_a_loss(logs: Logs, purgatory: Purgatory) -> None:
    """It is tried, and says itself if it has missed anything."""
    is_true: list[str] = []
    task = await parked(purgatory, "a", until=lambda: is_true)
    logs.lose("a")
    assert not task.done()
    is_true.append("now")
    logs.lose("a")
    assert (await task).status is Status.FIRED
    assert purgatory.statistics().outdated == 0


@pytest.mark.parametrize("is_failing", [False, True])
async def test_shared_signals_are_closed_with_their_purgatory(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, is_failing: bool
) -> None:
    """Also if its drain fails: connections must not be left open."""

    async def fail() -> None:
        raise ZeroDivisionError("a defect")

    purgatory = Purgatory(signals=logs, clock=current_clock())
    await purgatory.__aenter__()
    assert not logs.is_closed
    if is_failing:
        monkeypatch.setattr(purgatory, "drain", fail)
        with pytest.raises(ZeroDivisionError):
            await purgatory.close()
    else:
        await purgatory.close()
    assert logs.is_closed


async def test_a_purgatory_that_is_not_open_appends_nothing(logs: Logs) -> None:
    """Neither before it is opened nor after it is closed."""
    purgatory = Purgatory(signals=logs, clock=current_clock())
    for _ in range(2):
        with pytest.raises(PurgatoryClosedError):
            await purgatory.fire("k")
        with pytest.raises(PurgatoryClosedError):
            await purgatory.fire_shared([("k", 1)])
        async with purgatory:
            pass


async def test_what_the_signals_miss_is_missing_in_the_purgatory(
    logs: Logs, purgatory: Purgatory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readiness probes ask the purgatory."""
    monkeypatch.setattr(Logs, "missing", ["the log was not read yet"])
    assert purgatory.missing == ["the log was not read yet"]


@pytest.mark.parametrize("lost", ["a", "b"])
async def test_a_loss_in_one_of_several_logs(logs: Logs, purgatory: Purgatory, lost: str) -> None:
    """It is that of a wait on keys of both, whichever comes first."""
    assert logs.shard_of("b") != logs.shard_of("a"), "another pair of keys would do"
    for keys in (("a", "b"), ("b", "a")):
        task = await parked(purgatory, *keys)
        logs.lose(lost)
        with pytest.raises(CursorExpiredError) as raised:
            await task
        assert raised.value.key == lost
