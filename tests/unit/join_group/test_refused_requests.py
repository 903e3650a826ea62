"""What the coordinator refuses, and its drain."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.join_group import errors
from examples.join_group.assignors import ASSIGNORS
from examples.join_group.settings import CoordinatorSettings
from examples.join_group.state_table import GroupState
from examples.join_group.table import ranges
from tests.cases import cases
from tests.unit.join_group.group_bench import Bench


async def test_a_protocol_that_not_all_support(bench: Bench) -> None:
    """A member without a common protocol, or of another type, is refused, new or known."""
    leader, _ = await bench.stable(2, protocols={"range": "", "sticky": ""})
    for options in ({"protocols": {"other": ""}}, {"protocol_type": "connect"}):
        with pytest.raises(errors.InconsistentGroupProtocol) as refusal:
            bench.join(**options)
        assert refusal.value.members["supported"] == ["range", "sticky"]
        with pytest.raises(errors.InconsistentGroupProtocol):
            bench.join(leader.member_id, **options)
    assert bench.state is GroupState.STABLE


async def test_who_may_assign(bench: Bench) -> None:
    """The leader has to, to members only; nobody else may."""
    leader, follower = await bench.joined(2)
    with pytest.raises(errors.NotLeader, match=f"{leader.member_id} leads generation 1"):
        bench.sync(follower, {})
    with pytest.raises(errors.InvalidAssignment, match="sync with assignments"):
        bench.sync(leader)
    with pytest.raises(errors.InvalidAssignment, match="unknown members, such as x"):
        bench.sync(leader, {"x": [0]})
    assert bench.state is GroupState.COMPLETING_REBALANCE


async def test_nothing_begins_in_a_drain(bench: Bench) -> None:
    """Once the purgatory drains, every request is refused, and nothing is watched any more."""
    leader, follower = await bench.stable(2)
    parked = bench.join(leader.member_id)
    await bench.purgatory.drain()
    bench.coordinator.withdraw(parked)
    for ask in (
        bench.join,
        lambda: bench.sync(follower),
        lambda: bench.heartbeat(follower.member_id, 1),
        lambda: bench.leave(follower.member_id),
    ):
        with pytest.raises(errors.CoordinatorDraining) as refusal:
            ask()
        assert refusal.value.headers.keys() == {"Retry-After", "Connection"}
    assert bench.purgatory.parked == 0
    assert len(bench.coordinator.describe("g").members) == 2


async def test_a_reply_is_given_once(bench: Bench) -> None:
    """An outstanding reply has no result; of two answers the first counts."""
    reply = bench.join()
    with pytest.raises(RuntimeError, match="is not complete yet"):
        reply.result()
    answer = await bench.response(reply)
    reply.fail(RuntimeError("too late"))
    reply.complete(answer.model_copy(update={"generation": 9}))
    assert reply.result() == answer


@cases(
    "options",
    [
        {"min_session_timeout": 0},
        {"min_session_timeout": 7, "max_session_timeout": 6},
        {"max_rebalance_timeout": 0},
        {"max_group_size": 0},
        {"max_groups": -1},
    ],
)
def test_settings_that_contradict_one_another(options: dict[str, Any]) -> None:
    """Bounds that leave nothing allowed are refused when they are set."""
    with pytest.raises(ValueError, match=next(iter(options))):
        CoordinatorSettings(**options)


@given(st.integers(1, 40), st.integers(0, 200), st.sampled_from(sorted(ASSIGNORS)))
def test_an_assignor_is_fair(members: int, partitions: int, protocol: str) -> None:
    """Every partition goes to exactly one member, and nobody has two more than another."""
    names = [f"m{number}" for number in range(members)]
    shares = ASSIGNORS[protocol](names, partitions)
    assert shares.keys() == set(names)
    assert sorted(number for own in shares.values() for number in own) == list(range(partitions))
    sizes = [len(own) for own in shares.values()]
    assert max(sizes) - min(sizes) <= 1


@cases("numbers, text", [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((0, 2, 3, 7), "0 2-3 7")])
def test_how_the_demonstration_writes_partitions(numbers: tuple[int, ...], text: str) -> None:
    """Runs are drawn together."""
    assert ranges(numbers) == text
