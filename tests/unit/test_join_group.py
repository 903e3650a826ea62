"""The group coordinator in virtual time: case 33, its states, its deadlines, its refusals."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.join_group import errors
from examples.join_group.assignors import ASSIGNORS
from examples.join_group.coordinator import Coordinator
from examples.join_group.group import Group
from examples.join_group.member import Member
from examples.join_group.problems import KINDS
from examples.join_group.rebalance import Rebalance
from examples.join_group.reply import Reply
from examples.join_group.schemas import (
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveRequest,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from examples.join_group.settings import CoordinatorSettings
from examples.join_group.state_table import GroupEvent, GroupState, is_allowed, next_state
from examples.join_group.table import ranges
from examples.join_group.vote import elect
from examples.join_group.watch_keys import heartbeat_key, join_key, sync_key
from purgatory import Purgatory
from purgatory.testing import AutojumpEventLoop

SETTINGS = CoordinatorSettings(
    initial_rebalance_delay=3,
    min_session_timeout=6,
    max_session_timeout=300,
    max_rebalance_timeout=300,
    max_group_size=4,
    max_groups=2,
    empty_group_retention=600,
)
# Longer than anything here waits.
PATIENCE = 10_000
# What is due has been done after this much more: each deadline is up to a tick late.
MOMENT = 0.005

RawResponse = TypeVar("RawResponse", JoinAnswer, SyncAnswer)


class Bench:
    """A coordinator, those who ask it, and what time it is."""

    def __init__(self, purgatory: Purgatory, options: CoordinatorSettings = SETTINGS) -> None:
        self.purgatory = purgatory
        self.coordinator = Coordinator(purgatory, options)

    def now(self) -> float:
        """Seconds, in hundredths and rounded down: early shows, some ticks late do not."""
        return int(asyncio.get_running_loop().time() * 100) / 100

    def join(
        self,
        member_id: str | None = None,
        *,
        protocols: Mapping[str, str] | None = None,
        group: str = "g",
        **options: Any,
    ) -> Reply[JoinAnswer]:
        names = {"range": ""} if protocols is None else protocols
        body = [{"name": name, "metadata": metadata} for name, metadata in names.items()]
        return self.coordinator.join(
            group, JoinRequest(member_id=member_id, protocols=body, **options)
        )

    def sync(
        self, joined: JoinAnswer, assignments: Mapping[str, list[int]] | None = None
    ) -> Reply[SyncAnswer]:
        request = SyncRequest(
            member_id=joined.member_id,
            generation=joined.generation,
            assignments=None if assignments is None else dict(assignments),
        )
        return self.coordinator.sync("g", request)

    def heartbeat(self, member_id: str, generation: int) -> None:
        self.coordinator.heartbeat(
            "g", HeartbeatRequest(member_id=member_id, generation=generation)
        )

    def leave(self, member_id: str) -> None:
        self.coordinator.leave("g", LeaveRequest(member_id=member_id))

    async def answer(self, reply: Reply[RawResponse]) -> RawResponse:
        """Park until `reply` is answered, as an endpoint does."""
        await self.purgatory.park(reply.key, timeout=PATIENCE, until=reply.is_answered)
        return reply.result()

    async def joined(self, count: int = 1, **options: Any) -> list[JoinAnswer]:
        """Let `count` members join together, and return what they are told; the leader is first."""
        replies = [self.join(**options) for _ in range(count)]
        return [await self.answer(reply) for reply in replies]

    async def stable(self, count: int, **options: Any) -> list[JoinAnswer]:
        """Let `count` members join and sync."""
        members = await self.joined(count, **options)
        await self.all_sync(members)
        return members

    async def all_sync(self, members: list[JoinAnswer]) -> None:
        replies = [self.sync(member) for member in members[1:]]
        replies.append(self.sync(members[0], {members[0].member_id: [0]}))
        for reply in replies:
            await self.answer(reply)

    @property
    def state(self) -> GroupState:
        return self.coordinator.describe("g").state

    def waiting(self, key: str) -> int:
        return self.purgatory.waiting(key)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Run on a loop whose time jumps."""
    return "asyncio", {"loop_factory": AutojumpEventLoop}


@pytest.fixture
async def bench(make_purgatory: Callable[..., Purgatory]) -> AsyncIterator[Bench]:
    """A coordinator that is open during the test."""
    async with make_purgatory() as purgatory:
        yield Bench(purgatory)


ALLOWED = {
    ("empty", "rebalance-needed"): "preparing-rebalance",
    ("empty", "forgotten"): "dead",
    ("preparing-rebalance", "members-joined"): "completing-rebalance",
    ("preparing-rebalance", "nobody-joined"): "empty",
    ("completing-rebalance", "assigned"): "stable",
    ("completing-rebalance", "rebalance-needed"): "preparing-rebalance",
    ("stable", "rebalance-needed"): "preparing-rebalance",
}


@pytest.mark.parametrize("event", GroupEvent)
@pytest.mark.parametrize("state", GroupState)
def test_each_event_in_each_state(state: GroupState, event: GroupEvent) -> None:
    """What the table allows leads to the state it names; all else is refused."""
    following = ALLOWED.get((state, event))
    assert is_allowed(state, event) == (following is not None)
    if following is not None:
        assert next_state(state, event) == following
        return
    with pytest.raises(RuntimeError, match=f"{event} cannot happen to a group that is {state}"):
        next_state(state, event)


async def test_the_first_join_waits_for_the_initial_delay(bench: Bench) -> None:
    """One member alone is answered after the initial delay, never before."""
    [answer] = await bench.joined()
    assert bench.now() == 3
    assert (answer.generation, answer.leader, answer.protocol) == (1, answer.member_id, "range")
    assert bench.state is GroupState.COMPLETING_REBALANCE


async def test_the_initial_delay_is_extended_while_members_arrive(bench: Bench) -> None:
    """Each delay in which somebody new came is followed by another; all get one generation."""
    replies = [bench.join()]
    for _ in range(3):
        await asyncio.sleep(2)
        replies.append(bench.join())
    answers = [await bench.answer(reply) for reply in replies]
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
        assert (await bench.answer(reply)).generation == 1
    assert bench.now() == 7


async def test_a_short_rebalance_timeout_shortens_the_initial_delay(bench: Bench) -> None:
    """A rebalance timeout below the initial delay is kept."""
    await bench.joined(rebalance_timeout=1)
    assert bench.now() == 1


async def test_all_rejoined_are_answered_at_once(bench: Bench) -> None:
    """When the last known member has joined again, everyone gets the next generation, at once."""
    old = await bench.stable(3)
    began = bench.now()
    new = bench.join()
    assert bench.state is GroupState.PREPARING_REBALANCE
    rejoined = [bench.join(member.member_id) for member in old[:2]]
    await asyncio.sleep(1)
    assert not any(reply.is_answered() for reply in (new, *rejoined))
    rejoined.append(bench.join(old[2].member_id))
    answers = [await bench.answer(reply) for reply in (*rejoined, new)]
    assert bench.now() == began + 1
    assert {answer.generation for answer in answers} == {2}
    assert {answer.leader for answer in answers} == {old[0].member_id}
    assert [member.member_id for member in answers[0].members] == [
        answer.member_id for answer in answers
    ]
    assert [answer.members for answer in answers[1:]] == [[], [], []]


async def test_the_rebalance_timeout_drops_those_who_did_not_rejoin(bench: Bench) -> None:
    """At the longest rebalance timeout whoever has joined goes on; heartbeats alone do not help."""
    leader, follower = await bench.stable(2, rebalance_timeout=20, session_timeout=300)
    began = bench.now()
    new = bench.join(rebalance_timeout=5, session_timeout=300)
    with pytest.raises(errors.RebalanceInProgress):
        bench.heartbeat(leader.member_id, 1)
    again = bench.join(follower.member_id, rebalance_timeout=20, session_timeout=300)
    answers = [await bench.answer(again), await bench.answer(new)]
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
    answer = await bench.answer(bench.join(leader.member_id))
    assert (bench.now(), answer.generation, len(answer.members)) == (began + 10, 2, 1)


async def test_a_heartbeat_renews_the_session(bench: Bench) -> None:
    """A member that sends heartbeats in time stays for as long as it does."""
    [leader] = await bench.stable(1, session_timeout=6)
    for _ in range(100):
        await asyncio.sleep(5.9)
        bench.heartbeat(leader.member_id, 1)
        assert bench.waiting(heartbeat_key("g", leader.member_id)) == 1
    assert bench.state is GroupState.STABLE


async def test_a_parked_member_needs_no_heartbeat(bench: Bench) -> None:
    """While its join is parked a member has no session that could end; then a new one begins."""
    leader, _ = await bench.stable(2, session_timeout=6, rebalance_timeout=100)
    new = bench.join(session_timeout=6, rebalance_timeout=100)
    again = bench.join(leader.member_id, session_timeout=6, rebalance_timeout=100)
    for reply in (again, new):
        assert (await bench.answer(reply)).generation == 2
    assert bench.waiting(heartbeat_key("g", leader.member_id)) == 1
    await asyncio.sleep(6 + MOMENT)
    assert bench.coordinator.describe("g").members == []


async def test_sync_parks_followers_until_the_leader_assigns(bench: Bench) -> None:
    """Followers wait for the leader, and all get their own partitions; later ones at once."""
    leader, early, late = await bench.joined(3)
    parked = bench.sync(early)
    await asyncio.sleep(1)
    assert not parked.is_answered()
    own = bench.sync(leader, {leader.member_id: [0, 1], early.member_id: [2]})
    assert (await bench.answer(own)).partitions == [0, 1]
    assert (await bench.answer(parked)).partitions == [2]
    assert bench.state is GroupState.STABLE
    assert (await bench.answer(bench.sync(late))).partitions == []
    assert bench.waiting(sync_key("g")) == 0


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
        await bench.answer(parked)
    answer = await bench.answer(bench.join(follower.member_id))
    assert (bench.now(), answer.generation) == (began + 20, 2)
    assert answer.leader == follower.member_id


async def test_a_newcomer_interrupts_the_sync(bench: Bench) -> None:
    """A join before the leader has assigned begins anew: who waits for a sync is told so."""
    leader, follower = await bench.joined(2)
    parked = bench.sync(follower)
    new = bench.join()
    with pytest.raises(errors.RebalanceInProgress):
        await bench.answer(parked)
    with pytest.raises(errors.RebalanceInProgress):
        bench.sync(leader, {})
    replies = [bench.join(leader.member_id), bench.join(follower.member_id), new]
    assert {(await bench.answer(reply)).generation for reply in replies} == {2}


async def test_a_heartbeat_between_join_and_sync_is_fine(bench: Bench) -> None:
    """While the leader computes, heartbeats renew the session as usual."""
    [leader] = await bench.joined()
    await asyncio.sleep(5)
    bench.heartbeat(leader.member_id, 1)
    await asyncio.sleep(5)
    bench.heartbeat(leader.member_id, 1)


async def test_a_leave_begins_a_rebalance_at_once(bench: Bench) -> None:
    """No session has to end; the next in line leads where the leader left."""
    leader, follower = await bench.stable(2)
    bench.leave(leader.member_id)
    with pytest.raises(errors.RebalanceInProgress):
        bench.heartbeat(follower.member_id, 1)
    answer = await bench.answer(bench.join(follower.member_id))
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
    assert (await bench.answer(new)).generation == 2


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
    assert not bench.join(leader.member_id).is_answered()
    assert bench.state is GroupState.PREPARING_REBALANCE


async def test_other_protocols_ask_for_a_rebalance(bench: Bench) -> None:
    """A follower that joins with other metadata wants it to be seen by the leader."""
    leader, follower = await bench.stable(2)
    again = bench.join(follower.member_id, protocols={"range": "new"})
    answer = await bench.answer(bench.join(leader.member_id))
    assert [member.metadata for member in answer.members] == ["", "new"]
    assert (await bench.answer(again)).generation == 2


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
    assert {(await bench.answer(reply)).generation for reply in (lead, again)} == {2}
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
    answers = [await bench.answer(reply) for reply in replies]
    assert {answer.protocol for answer in answers} == {"range"}
    assert [member.metadata for member in answers[0].members] == ["r1", "r2", "r3"]


@pytest.mark.parametrize(
    ("ballots", "elected"),
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
    assert elect(ballots) == elected


def test_an_election_without_candidates() -> None:
    """Where nothing is common to all, nothing is elected."""
    with pytest.raises(ValueError, match="no protocol in common"):
        elect([["a"], ["b"]])


async def test_a_member_that_is_unknown(bench: Bench) -> None:
    """Every request of a stranger is refused, in every group."""
    await bench.stable(1)
    stranger = JoinAnswer(member_id="x", generation=1, protocol="range", leader="y", members=[])
    for ask in (
        lambda: bench.join("x"),
        lambda: bench.join("x", group="other"),
        lambda: bench.sync(stranger),
        lambda: bench.heartbeat("x", 1),
        lambda: bench.leave("x"),
    ):
        with pytest.raises(errors.UnknownMemberId, match="x is no member of group"):
            ask()
    with pytest.raises(errors.UnknownGroup, match="there is no group other"):
        bench.coordinator.describe("other")


async def test_a_generation_that_has_passed(bench: Bench) -> None:
    """Neither a sync nor a heartbeat of another generation counts, older or newer."""
    [leader] = await bench.stable(1)
    for generation in (0, 2):
        stale = leader.model_copy(update={"generation": generation})
        with pytest.raises(errors.IllegalGeneration, match="is at generation 1"):
            bench.sync(stale)
        with pytest.raises(errors.IllegalGeneration, match=f"generation {generation}"):
            bench.heartbeat(leader.member_id, generation)


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


async def test_a_member_alone_may_change_its_protocols(bench: Bench) -> None:
    """What a member supported before binds it to nothing: it is the others that count."""
    [only] = await bench.stable(1)
    answer = bench.join(only.member_id, protocols={"other": ""}, protocol_type="connect").result()
    assert (answer.generation, answer.protocol) == (2, "other")
    assert bench.coordinator.describe("g").protocol_type == "connect"


async def test_a_group_that_is_full(bench: Bench) -> None:
    """A member beyond the limit is refused; a known one is not."""
    leader, *_ = await bench.stable(4)
    with pytest.raises(errors.GroupFull, match="has 4 members, which is the limit"):
        bench.join()
    bench.join(leader.member_id)


async def test_too_many_groups(bench: Bench) -> None:
    """A group beyond the limit is refused with Retry-After, and leaves nothing behind."""
    bench.join(group="a")
    bench.join(group="b")
    with pytest.raises(errors.TooManyGroups, match="there are 2 groups") as refusal:
        bench.join(group="c")
    assert 1 <= int(refusal.value.headers["Retry-After"]) <= 5
    with pytest.raises(errors.UnknownGroup):
        bench.coordinator.describe("c")


async def test_who_may_assign(bench: Bench) -> None:
    """The leader has to, to members only; nobody else may."""
    leader, follower = await bench.joined(2)
    with pytest.raises(errors.NotLeader, match=f"{leader.member_id} leads generation 1"):
        bench.sync(follower, {})
    with pytest.raises(errors.InvalidAssignment, match="sync with assignments"):
        bench.sync(leader)
    with pytest.raises(errors.InvalidAssignment, match="to x first"):
        bench.sync(leader, {"x": [0]})
    assert bench.state is GroupState.COMPLETING_REBALANCE


@pytest.mark.parametrize("timeout", [5.999, 300.001])
async def test_a_session_timeout_out_of_bounds(bench: Bench, timeout: float) -> None:
    """Too short and too long are refused, with the bounds; the bounds themselves are fine."""
    with pytest.raises(errors.InvalidSessionTimeout, match="give 6 to 300 seconds") as refusal:
        bench.join(session_timeout=timeout)
    assert refusal.value.members == {"minimum": 6, "maximum": 300}
    for bound in (6, 300):
        bench.join(session_timeout=bound)


@pytest.mark.parametrize("timeout", [0, -1, 300.001])
async def test_a_rebalance_timeout_out_of_bounds(bench: Bench, timeout: float) -> None:
    """None, negative and too long are refused, with the limit."""
    with pytest.raises(errors.InvalidRebalanceTimeout, match="at most 300 seconds"):
        bench.join(rebalance_timeout=timeout)


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


async def test_what_still_ends_in_a_drain_begins_nothing(bench: Bench) -> None:
    """A deadline that passes while a long drain is under way changes the group, and no more."""
    rebalance = Rebalance(bench.purgatory, SETTINGS, on_oblivion=lambda group: None)
    group = Group("g")
    member = Member("m", JoinRequest(protocols=[Protocol(name="range")]))
    group.add(member, "consumer")
    await bench.purgatory.drain()
    rebalance.remove(group, member, errors.UnknownMemberId("m is gone"))
    assert (group.state, bench.purgatory.parked) == (GroupState.PREPARING_REBALANCE, 0)


async def test_an_operator_ends_what_waits(bench: Bench) -> None:
    """Cancelling a key does what its deadline would: the session, the join, the sync, oblivion."""
    leader, follower = await bench.joined(2)
    assert await bench.purgatory.cancel(sync_key("g")) == 1  # neither has synced
    assert await bench.purgatory.cancel(join_key("g")) == 1  # nobody is left
    with pytest.raises(errors.UnknownGroup):
        bench.coordinator.describe("g")
    leader, follower = await bench.stable(2)
    assert await bench.purgatory.cancel(heartbeat_key("g", leader.member_id)) == 1
    assert bench.state is GroupState.PREPARING_REBALANCE
    new = bench.join()
    assert await bench.purgatory.cancel(join_key("g")) == 1
    assert new.result().generation == 2
    with pytest.raises(errors.UnknownMemberId):
        bench.heartbeat(follower.member_id, 2)


async def test_a_reply_is_given_once(bench: Bench) -> None:
    """An outstanding reply has no result; of two answers the first counts."""
    reply = bench.join()
    with pytest.raises(RuntimeError, match="is not answered yet"):
        reply.result()
    answer = await bench.answer(reply)
    reply.fail(RuntimeError("too late"))
    reply.answer(answer.model_copy(update={"generation": 9}))
    assert reply.result() == answer


def test_every_refusal_has_its_own_kind() -> None:
    """Each error has a slug, a status, a title and a remedy, which no other one has."""

    def leaves(kind: type[errors.GroupError]) -> list[type[errors.GroupError]]:
        return [leaf for below in kind.__subclasses__() for leaf in leaves(below)] or [kind]

    kinds = leaves(errors.GroupError)
    assert set(KINDS.values()) == set(kinds)
    assert len({kind.slug for kind in kinds}) == len({kind.title() for kind in kinds}) == 13
    assert all(400 <= kind.status < 600 and kind.remedy.endswith(".") for kind in kinds)


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((0, 2, 3, 7), "0 2-3 7")],
)
def test_how_the_demonstration_writes_partitions(numbers: tuple[int, ...], text: str) -> None:
    """Runs are drawn together."""
    assert ranges(numbers) == text


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "join",
                "rejoin",
                "rejoin otherwise",
                "all rejoin",
                "sync",
                "all sync",
                "heartbeat",
                "all heartbeat",
                "leave",
                "withdraw",
                "wait",
            ]
        ),
        st.integers(0, 7),
    ),
    min_size=20,
    max_size=60,
)


class _Walk:
    """Takes steps, whatever becomes of them, and states what holds after each."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.replies: list[Reply[Any]] = []
        # {member id: the newest answer to a join of its}
        self.answers: dict[str, JoinAnswer] = {}

    async def step(self, what: str, number: int) -> None:
        if what == "wait":
            await asyncio.sleep(number)
        elif what == "join":
            self._try(lambda: self._join(None, session_timeout=6 + number))
        elif what == "withdraw" and self.replies:
            self.bench.coordinator.withdraw(self.replies[-1 - number % len(self.replies)])
        elif self.answers:
            self._ask(what, number)
        for reply in self.replies:
            self._note(reply)

    def _ask(self, what: str, number: int) -> None:
        members = list(self.answers.values())
        if what.startswith("all "):
            what = what.removeprefix("all ")
        else:
            members = [members[-1 - number % len(members)]]
        for member in members:
            self._try(lambda member=member: self._ask_as(what, member))  # type: ignore[misc] # bound now

    def _ask_as(self, what: str, member: JoinAnswer) -> None:
        is_leader = member.leader == member.member_id
        if what == "rejoin":
            self._join(member.member_id)
        elif what == "rejoin otherwise":
            self._join(member.member_id, protocols={"range": "new"})
        elif what == "sync":
            assignments = {member.member_id: [0]} if is_leader else None
            self.replies.append(self.bench.sync(member, assignments))
        elif what == "heartbeat":
            self.bench.heartbeat(member.member_id, member.generation)
        elif what == "leave":
            self.bench.leave(member.member_id)

    def _join(self, member_id: str | None, **options: Any) -> None:
        self.replies.append(self.bench.join(member_id, rebalance_timeout=15, **options))

    def _try(self, ask: Callable[[], object]) -> None:
        try:
            ask()
        except errors.GroupError:
            pass

    def _note(self, reply: Reply[Any]) -> None:
        try:
            answer = reply.result()
        except (errors.GroupError, RuntimeError):
            return
        if isinstance(answer, JoinAnswer):
            older = self.answers.get(answer.member_id)
            if older is None or answer.generation >= older.generation:
                self.answers[answer.member_id] = answer

    def check(self) -> None:
        try:
            group = self.bench.coordinator.describe("g")
        except errors.UnknownGroup:
            assert self.bench.purgatory.parked == 0
            return
        waits_for_joins = group.state in (GroupState.PREPARING_REBALANCE, GroupState.EMPTY)
        syncs = self.bench.waiting(sync_key("g"))
        sessions = [
            self.bench.waiting(heartbeat_key("g", member.member_id)) for member in group.members
        ]
        assert self.bench.waiting(join_key("g")) == waits_for_joins
        assert syncs <= (not waits_for_joins)
        assert syncs == 1 or group.state is not GroupState.COMPLETING_REBALANCE
        assert sessions == [int(not member.is_waiting) for member in group.members]
        # A reply is outstanding for each that waits, and for nobody else.
        outstanding = [reply.member_id for reply in self.replies if not reply.is_answered()]
        assert sorted(outstanding) == sorted(
            member.member_id for member in group.members if member.is_waiting
        )
        # Nothing else waits: what belongs to a member that is gone is gone.
        assert self.bench.purgatory.parked == waits_for_joins + syncs + sum(sessions)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), STEPS)
def test_whatever_happens_everyone_is_waited_for_exactly_once(
    members: int, steps: list[tuple[str, int]]
) -> None:
    """A member is parked or has one session; a group in need of joins or syncs has one wait."""
    beginning = [("join", 7)] * members + [("wait", 7)]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        async with Purgatory(clock=loop.clock) as purgatory:
            walk = _Walk(Bench(purgatory))
            for what, number in beginning + steps:
                await walk.step(what, number)
                walk.check()
            # Everyone falls silent: all requests are answered, all sessions end, all is forgotten.
            await asyncio.sleep(2000)
            assert all(reply.is_answered() for reply in walk.replies)
            assert purgatory.statistics().timers == 0

    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runner.run(run())
