"""The group coordinator in virtual time: case 33, its states and its deadlines."""

import asyncio

import pytest

from examples.join_group import errors
from examples.join_group.state_table import GroupEvent, GroupState, is_allowed, next_state
from examples.join_group.watch_keys import heartbeat_key
from tests.cases import cases
from tests.unit.join_group.group_bench import MOMENT, Bench

ALLOWED = {
    ("empty", "rebalance-needed"): "preparing-rebalance",
    ("empty", "expired"): "dead",
    ("preparing-rebalance", "members-joined"): "completing-rebalance",
    ("preparing-rebalance", "nobody-joined"): "empty",
    ("completing-rebalance", "assigned"): "stable",
    ("completing-rebalance", "rebalance-needed"): "preparing-rebalance",
    ("stable", "rebalance-needed"): "preparing-rebalance",
    **{
        (state, "ownership-lost"): "dead"
        for state in ("empty", "preparing-rebalance", "completing-rebalance", "stable")
    },
}


@cases("event", GroupEvent)
@cases("state", GroupState)
def test_each_event_in_each_state(state: GroupState, event: GroupEvent) -> None:
    """What the table allows leads to the state it names; all else is refused."""
    following = ALLOWED.get((state, event))
    assert is_allowed(state, event) == (following is not None)
    if following is not None:
        assert next_state(state, event) == following
        return
    with pytest.raises(RuntimeError, match=f"{event} is not allowed for a group that is {state}"):
        next_state(state, event)


async def test_the_initial_delay_is_extended_while_members_arrive(bench: Bench) -> None:
    """Each delay in which somebody new came is followed by another; all get one generation."""
    replies = [bench.join()]
    for _ in range(3):
        await asyncio.sleep(2)
        replies.append(bench.join())
    answers = [await bench.response(reply) for reply in replies]
    # Joins at 0, 2, 4, 6; the delays end at 3, 6 and 9, the last of them without anyone new.
    assert bench.now() == 9
    assert {answer.generation for answer in answers} == {1}
    assert [len(answer.members) for answer in answers] == [4, 0, 0, 0]


async def test_the_initial_delay_ends_at_the_rebalance_timeout(bench: Bench) -> None:
    """However many arrive: not beyond the longest rebalance timeout of the members."""
    first = bench.join(rebalance_timeout=4)
    await asyncio.sleep(2)
    second = bench.join(rebalance_timeout=7)
    await asyncio.sleep(3)
    third = bench.join(rebalance_timeout=1)
    for reply in (first, second, third):
        assert (await bench.response(reply)).generation == 1
    assert bench.now() == 7


async def test_the_rebalance_timeout_drops_those_who_did_not_rejoin(bench: Bench) -> None:
    """At the longest rebalance timeout whoever has joined goes on; heartbeats alone do not help."""
    leader, follower = await bench.stable(2, rebalance_timeout=20, session_timeout=300)
    began = bench.now()
    new = bench.join(rebalance_timeout=5, session_timeout=300)
    with pytest.raises(errors.RebalanceInProgress):
        bench.heartbeat(leader.member_id, 1)
    again = bench.join(follower.member_id, rebalance_timeout=20, session_timeout=300)
    answers = [await bench.response(again), await bench.response(new)]
    assert bench.now() == began + 20
    assert {answer.leader for answer in answers} == {follower.member_id}
    with pytest.raises(errors.UnknownMemberId):
        bench.heartbeat(leader.member_id, 1)


async def test_an_expired_session_removes_the_member(bench: Bench) -> None:
    """A silent member is out after its session timeout, never before, and the others rebalance."""
    leader, follower = await bench.stable(2, session_timeout=10)
    began = bench.now()
    await asyncio.sleep(9)
    bench.heartbeat(leader.member_id, 1)
    await asyncio.sleep(0.999)
    assert bench.state is GroupState.STABLE
    await asyncio.sleep(0.001 + MOMENT)
    assert (bench.now(), bench.state) == (began + 10, GroupState.PREPARING_REBALANCE)
    with pytest.raises(errors.UnknownMemberId):
        bench.heartbeat(follower.member_id, 1)
    answer = await bench.response(bench.join(leader.member_id))
    assert (bench.now(), answer.generation, len(answer.members)) == (began + 10, 2, 1)


async def test_a_parked_member_needs_no_heartbeat(bench: Bench) -> None:
    """While its join is parked a member has no session that could end; then a new one begins."""
    leader, _ = await bench.stable(2, session_timeout=6, rebalance_timeout=100)
    new = bench.join(session_timeout=6, rebalance_timeout=100)
    again = bench.join(leader.member_id, session_timeout=6, rebalance_timeout=100)
    for reply in (again, new):
        assert (await bench.response(reply)).generation == 2
    assert bench.waiting(heartbeat_key("g", leader.member_id)) == 1
    await asyncio.sleep(6 + MOMENT)
    assert bench.coordinator.describe("g").members == []


async def test_a_leader_that_never_assigns_is_dropped(bench: Bench) -> None:
    """At the rebalance timeout whoever has not synced is out, and those who wait join again."""
    leader, follower = await bench.joined(2, rebalance_timeout=20, session_timeout=6)
    began = bench.now()
    parked = bench.sync(follower)
    for _ in range(4):
        await asyncio.sleep(5)
        if bench.now() < began + 20:
            bench.heartbeat(leader.member_id, 1)
    with pytest.raises(errors.RebalanceInProgress):
        await bench.response(parked)
    answer = await bench.response(bench.join(follower.member_id))
    assert (bench.now(), answer.generation) == (began + 20, 2)
    assert answer.leader == follower.member_id
