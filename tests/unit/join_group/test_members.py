"""Members that leave, return, repeat themselves, and select_protocol a protocol."""

import asyncio

import pytest

from examples.join_group import errors
from examples.join_group.protocol_selection import select_protocol
from examples.join_group.state_table import GroupState
from tests.cases import cases
from tests.unit.join_group.group_bench import MOMENT, Bench


async def test_an_empty_group_keeps_its_generation_for_a_while(bench: Bench) -> None:
    """The next member goes on counting; where nobody comes, the group is forgotten."""
    [only] = await bench.stable(1)
    bench.leave(only.member_id)
    assert (bench.state, bench.coordinator.describe("g").generation) == (GroupState.EMPTY, 2)
    await asyncio.sleep(599)
    [another] = await bench.joined(protocols={"other": ""}, protocol_type="connect")
    assert (another.generation, another.protocol) == (3, "other")
    bench.leave(another.member_id)
    await asyncio.sleep(599.9)
    assert bench.state is GroupState.EMPTY
    await asyncio.sleep(0.1 + MOMENT)
    with pytest.raises(errors.UnknownGroup):
        bench.coordinator.describe("g")
    assert bench.purgatory.parked == 0


async def test_a_repeated_join_is_told_of_the_generation_that_is(bench: Bench) -> None:
    """A follower whose answer was lost gets it again; a leader's join asks for a rebalance."""
    leader, follower = await bench.joined(2)
    assert bench.join(follower.member_id).result() == follower
    assert bench.join(leader.member_id).result() == leader
    await bench.all_sync([leader, follower])
    assert bench.join(follower.member_id).result() == follower
    assert not bench.join(leader.member_id).is_complete()
    assert bench.state is GroupState.PREPARING_REBALANCE


@cases(
    "ballots, elected",
    [
        ([["a"]], "a"),
        ([["a", "b"], ["b", "a"]], "a"),
        ([["b", "a"], ["a", "b"]], "b"),
        ([["c", "a", "b"], ["b", "a"], ["b", "a"]], "b"),
        ([["c", "b"], ["d", "b"]], "b"),
    ],
)
def test_an_election(ballots: list[list[str]], elected: str) -> None:
    """What not everyone supports gets no votes; of equals it is what the first one prefers."""
    assert select_protocol(ballots) == elected
