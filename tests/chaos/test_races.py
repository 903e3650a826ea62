"""The short form of the races: a defer with a cursor and fires at the same time."""

from pathlib import Path

import pytest

from tests.chaos.races.racer import Races
from tests.chaos.races.run import (
    KINDS,
    Plan,
    race_in_memory,
    race_in_one_process,
    race_in_two_processes,
)


async def race(kind: str, folder: Path, plan: Plan) -> Races:
    """Return what came of the races of a plan, within this process."""
    if kind == "memory":
        return await race_in_memory(plan, lambda races: None)
    return await race_in_one_process(kind, folder, plan.halves())


@pytest.mark.parametrize("kind", KINDS)
async def test_no_fire_is_missed(kind: str, tmp_path: Path) -> None:
    """Any, some or all of several keys, by two purgatories with connections of their own."""
    for seed in range(10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        races = await race(kind, folder, Plan("a", 300, seed))
        assert (races.pairs, races.missed) == (300, [])
        assert len(races.conditions) == 6
        # The history had some: on a busy machine, that takes more races.
        if races.by_the_fire < 300:
            return
    pytest.fail("the history decided none of 3,000")


async def test_no_fire_is_missed_across_processes(tmp_path: Path) -> None:
    """Each fires keys of the other, and both reports are added."""
    plans = Plan("a", 200).halves()
    races = await race_in_two_processes("sqlite", tmp_path, plans, lambda races: None)
    assert (races.pairs, races.missed) == (200, [])
    assert races.by_the_fire < 200


async def test_the_wrong_order_is_noticed(tmp_path: Path) -> None:
    """If the history is read before the job is stored, some are missed."""
    for seed in range(10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        if (await race("sqlite", folder, Plan("a", 300, seed, is_planted=True))).missed:
            return
    pytest.fail("none of 3,000 was missed")


async def test_without_a_cursor_some_are_missed() -> None:
    """Which is why there is one."""
    assert (await race_in_memory(Plan("a", 600, has_cursor=False), lambda races: None)).missed
