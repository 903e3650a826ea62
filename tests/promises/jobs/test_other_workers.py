"""Several processes on one database: one warning if they do not share signals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from purgatory.jobs import StoreUnavailableError
from tests.promises.kit import HOUR_S, Bench, Process, now_ms


@pytest.fixture
def seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """Other workers, and when they were last seen; None for one that is at work."""
    found: dict[str, int | None] = {}

    async def workers(*, limit: int) -> dict[str, int]:
        assert limit == 100
        return {name: now_ms() if at is None else at for name, at in found.items()}

    monkeypatch.setattr(bench.database, "workers", workers, raising=False)
    return found


async def looking(bench: Bench, **options: Any) -> Process:
    """Without handlers, as a worker that claims every few seconds makes hours long."""
    return await bench.process({}, **{"is_separate": False, "lease_ms": 30_000, **options})


def warnings(bench: Bench) -> list[str]:
    return bench.actions("signals-not-shared")


async def test_alone_it_looks_once_an_hour(bench: Bench, seen: dict[str, int | None]) -> None:
    """More often at first; processes that it replaced change nothing."""
    seen["replaced"] = now_ms()
    one = await looking(bench)
    await asyncio.sleep(HOUR_S)
    assert 6 <= one.link.count("workers") <= 16
    before = one.link.count("workers")
    await asyncio.sleep(5 * HOUR_S)
    assert 4 <= one.link.count("workers") - before <= 11 and warnings(bench) == []
    async with asyncio.timeout(1):
        await one.purgatory.close()


@pytest.mark.parametrize(("share", "choose"), [(1.0, max), (0.5, min)])
async def test_how_long_it_pauses(
    bench: Bench, seen: dict[str, int | None], monkeypatch: pytest.MonkeyPatch,
    share: float, choose: Any,
) -> None:  # fmt: skip
    """A minute at first, then twice as long up to an hour: or half of that, for some processes."""
    monkeypatch.setattr("random.uniform", choose)
    one = await looking(bench)
    looks = 1
    for pause_s in (60, 120, 240, 480, 960, 1_920, 3_600, 3_600, 3_600):
        await asyncio.sleep(pause_s * share - 0.1)
        assert one.link.count("workers") == looks
        looks += 1
        await asyncio.sleep(0.1 + 0.01)
        assert one.link.count("workers") == looks


@pytest.mark.parametrize(
    ("lease_s", "grace_s", "overlap_s"), [(15, 5, 60), (120, 5, 240), (15, 600, 615)]
)
async def test_a_process_may_be_seen_for_as_long_as_its_leases_and_its_drain_last(
    bench: Bench, seen: dict[str, int | None], monkeypatch: pytest.MonkeyPatch,
    lease_s: int, grace_s: int, overlap_s: int,
) -> None:  # fmt: skip
    """And for a minute, while a deploy goes on; counted from when it was seen first."""
    monkeypatch.setattr("random.uniform", max)
    seen["other"] = now_ms()
    await looking(bench, lease_ms=lease_s * 1000, grace_ms=grace_s * 1000)
    await asyncio.sleep(59.9)
    first_ms = seen["other"] = now_ms()
    await asyncio.sleep(60)
    for stayed_ms, is_named in ((overlap_s * 1000 - 1, False), (overlap_s * 1000, True)):
        assert warnings(bench) == []
        seen["other"] = first_ms + stayed_ms
        await asyncio.sleep(60)
        assert bool(warnings(bench)) == is_named


@pytest.mark.parametrize("after_s", [0, 5 * HOUR_S])
async def test_another_one_is_named_once(
    bench: Bench, seen: dict[str, int | None], after_s: float
) -> None:
    """With the second look that finds it, a minute later; then it looks no more."""
    one = await looking(bench)
    await asyncio.sleep(after_s + 1)
    seen["other"] = None
    await asyncio.sleep(HOUR_S + 180)
    assert warnings(bench) == ["signals-not-shared"] and "process, other," in bench.caplog.text
    before = one.link.count("workers")
    await asyncio.sleep(5 * HOUR_S)
    assert one.link.count("workers") == before


@pytest.mark.parametrize(("name", "is_named"), [("first", False), ("second", True)])
async def test_so_many_are_remembered(
    bench: Bench, seen: dict[str, int | None], monkeypatch: pytest.MonkeyPatch,
    name: str, is_named: bool,
) -> None:  # fmt: skip
    """Those that were seen first make room."""
    monkeypatch.setattr("random.uniform", max)
    monkeypatch.setattr("purgatory.jobs.store_opener.MAX_WORKERS", 3)
    await looking(bench)
    await asyncio.sleep(30)
    for each in ("first", "second", "third", "fourth", name):
        seen.clear()
        seen[each] = now_ms()
        await asyncio.sleep(60)
    assert bool(warnings(bench)) == is_named


@pytest.mark.parametrize(("stays_s", "is_named"), [(50, False), (200, True)])
async def test_a_deploy_is_no_other_process(
    bench: Bench, seen: dict[str, int | None], stays_s: float, is_named: bool
) -> None:
    """Not before the overlap of a deploy is over; of many, those seen first make room."""
    one = await looking(bench)
    await asyncio.sleep(1)
    seen |= dict.fromkeys([f"w{n}" for n in range(99)], None)
    await asyncio.sleep(stays_s)
    for name in list(seen):
        seen[name] = now_ms()
    await asyncio.sleep(3 * HOUR_S)
    assert bool(warnings(bench)) == is_named and one.link.count("workers") >= 2


@pytest.mark.parametrize(
    ("options", "is_looking"),
    [({}, True), ({"shares_signals": True}, False), ({"is_separate": True}, False)],
)
async def test_who_looks(
    bench: Bench, seen: dict[str, int | None], options: Any, is_looking: bool
) -> None:
    """Only processes with signals of their own, if that is not wanted; until they drain."""
    seen["other"] = None
    one = await looking(bench, **options)
    await asyncio.sleep(HOUR_S)
    assert (one.link.count("workers") > 0) == is_looking
    await one.purgatory.close()
    before = one.link.count("workers")
    await asyncio.sleep(5 * HOUR_S)
    assert one.link.count("workers") == before


async def test_an_outage_does_not_end_the_looking(
    bench: Bench, seen: dict[str, int | None]
) -> None:
    """The worker reports it; another process is noticed afterwards."""
    one = await looking(bench)
    one.link.on("workers", error=StoreUnavailableError("away"))
    await asyncio.sleep(HOUR_S)
    assert one.link.count("workers") > 3 and warnings(bench) == []
    one.link.mend()
    seen["other"] = None
    await asyncio.sleep(3 * HOUR_S)
    assert len(warnings(bench)) == 1
