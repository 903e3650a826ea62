"""The short form of the races: a defer with a cursor and fires at the same time."""

from pathlib import Path

import pytest

from tests.chaos.races import KINDS, run_races


@pytest.fixture(
    scope="module",
    params=[pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio")],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run each test on the loop of the standard library."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


@pytest.mark.parametrize("kind", KINDS)
async def test_no_fire_is_missed(kind: str, tmp_path: Path) -> None:
    """Any, some or all of several keys, from this process and from another."""
    races = await run_races(kind, 300, tmp_path)
    assert (races.pairs, races.missed) == (300, [])
    # The history had some, and the condition was each of its kinds.
    assert races.by_the_fire < 300
    assert len(races.conditions) == 6


async def test_without_a_cursor_some_are_missed(tmp_path: Path) -> None:
    """So that the test above would notice."""
    assert (await run_races("memory", 300, tmp_path, has_cursor=False)).missed
