"""Members that leave, return, repeat themselves, and select_protocol a protocol."""

import asyncio

import pytest

from examples.join_group import errors
from examples.join_group.protocol_selection import select_protocol
from examples.join_group.state_table import GroupState
from tests.cases import cases
from tests.unit.join_group.group_bench import MOMENT, Bench


async def test_a_leave_begins_a_rebalance_at_once(bench: Bench) -> None:
    """No session has to end; the next in line leads where the leader left."""
    leader, follower = await bench.stable(2)
    bench.leave(leader.member_id)
    with pytest.raises(errors.RebalanceInProgress):
        bench.heartbeat(follower.member_id, 1)
    answer = await bench.response(bench.join(follower.member_id))
    assert (answer.generation, answer.leader) == (2, follower.member_id)


async def test_a_leave_of_the_last_one_missing_ends_the_wait(bench: Bench) -> None:
    """Whoever leaves is waited for no longer; its own parked join is refused."""
    leader, follower = await bench.stable(2)
    new = bench.join()
    parked = bench.join(follower.member_id)
    bench.leave(follower.member_id)
    with pytest.raises(errors.UnknownMemberId):
        parked.result()
    bench.leave(leader.member_id)
    assert (await bench.response(new)).generation == 2


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


async def test_other_protocols_ask_for_a_rebalance(bench: Bench) -> None:
    """A follower that joins with other metadata wants it to be seen by the leader."""
    leader, follower = await bench.stable(2)
    again = bench.join(follower.member_id, protocols={"range": "new"})
    answer = await bench.response(bench.join(leader.member_id))
    assert [member.metadata for member in answer.members] == ["", "new"]
    assert (await bench.response(again)).generation == 2


async def test_a_newer_request_takes_the_place_of_an_older(bench: Bench) -> None:
    """The same member's second join and sync are answered, and the first ones superseded."""
    leader, follower = await bench.stable(2)
    first, second = bench.join(leader.member_id), bench.join(leader.member_id)
    with pytest.raises(errors.JoinSuperseded):
        first.result()
    last = bench.join(follower.member_id)
    assert second.result().generation == 2
    follower = last.result()
    older, newer = bench.sync(follower), bench.sync(follower)
    with pytest.raises(errors.JoinSuperseded):
        older.result()
    bench.sync(second.result(), {follower.member_id: [7]})
    assert newer.result().partitions == [7]


async def test_a_new_member_whose_client_goes_is_out(bench: Bench) -> None:
    """Nobody knows its id, so nobody can come back as it: the others do not wait for it."""
    [leader] = await bench.stable(1)
    new = bench.join()
    again = bench.join(leader.member_id)
    assert again.result().generation == 2  # both were there
    bench.leave(new.result().member_id)
    gone = bench.join()
    bench.coordinator.withdraw(gone)
    bench.coordinator.withdraw(gone)
    answer = bench.join(leader.member_id).result()
    assert (answer.generation, len(answer.members)) == (3, 1)


async def test_a_known_member_whose_client_goes_may_come_back(bench: Bench) -> None:
    """Its join is withdrawn and its session begins: it joins again in time, or it is out."""
    leader, follower = await bench.stable(2, session_timeout=10)
    began = bench.now()
    again = bench.join(follower.member_id, session_timeout=10, protocols={"range": "new"})
    bench.coordinator.withdraw(again)
    lead = bench.join(leader.member_id, session_timeout=10)
    await asyncio.sleep(9)
    again = bench.join(follower.member_id, session_timeout=10)
    assert {(await bench.response(reply)).generation for reply in (lead, again)} == {2}
    parked = bench.sync(follower.model_copy(update={"generation": 2}))
    bench.coordinator.withdraw(parked)
    bench.coordinator.withdraw(parked)
    for _ in range(3):
        await asyncio.sleep(5)
        if bench.state is GroupState.COMPLETING_REBALANCE:
            bench.heartbeat(leader.member_id, 2)
    assert (bench.now(), bench.state) == (began + 9 + 15, GroupState.PREPARING_REBALANCE)
    with pytest.raises(errors.UnknownMemberId):
        bench.heartbeat(follower.member_id, 2)


async def test_a_protocol_is_elected(bench: Bench) -> None:
    """Among those that all support, the one that most like best; the leader sees its metadata."""
    replies = [
        bench.join(protocols={"sticky": "s1", "roundrobin": "o1", "range": "r1"}),
        bench.join(protocols={"range": "r2", "roundrobin": "o2"}),
        bench.join(protocols={"range": "r3", "roundrobin": "o3"}),
    ]
    answers = [await bench.response(reply) for reply in replies]
    assert {answer.protocol for answer in answers} == {"range"}
    assert [member.metadata for member in answers[0].members] == ["r1", "r2", "r3"]


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


def test_an_election_without_candidates() -> None:
    """Where nothing is common to all, nothing is elected."""
    with pytest.raises(ValueError, match="no protocol in common"):
        select_protocol([["a"], ["b"]])
