"""The group coordinator in virtual time: case 33, static members, and what it responds to whom."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.coordinator import Coordinator, GroupSettings
from examples.kafka_broker.groups.group import (
    CommittedOffset,
    Group,
    GroupState,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
    select_protocol,
)
from purgatory import Purgatory
from purgatory.testing import AutojumpEventLoop, current_clock
from tests.cases import cases
from tests.nightly import by_night
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture

SETTINGS = GroupSettings(max_group_size=4, empty_group_retention_ms=600_000)

# What is due has been done after this much more: each deadline is up to a tick late.
MOMENT = 0.005


@dataclass
class Reply:
    """What one request was told, once."""

    results: list[Any] = field(default_factory=list)

    def __call__(self, result: Any) -> None:
        self.results.append(result)
        assert len(self.results) == 1

    @property
    def error(self) -> ErrorCode | None:
        return self.results[0].error if self.results else None

    @property
    def joined(self) -> JoinResult:
        (result,) = self.results
        assert isinstance(result, JoinResult) and result.error is ErrorCode.NONE, result
        return result


class Bench:
    """A coordinator, those who ask it, and what time it is."""

    def __init__(self, purgatory: Purgatory) -> None:
        self.purgatory = purgatory
        self.coordinator = Coordinator(purgatory, purgatory, SETTINGS)

    def join(self, member_id: str = "", **options: Any) -> Reply:
        reply = Reply()
        protocols = options.pop("protocols", [("range", b"")])
        request = JoinRequest(group_id="g", member_id=member_id, protocols=protocols, **options)
        self.coordinator.join(request, reply)
        return reply

    def sync(self, joined: JoinResult, **assignments: bytes) -> Reply:
        reply = Reply()
        self.coordinator.sync(
            SyncRequest(
                group_id="g",
                member_id=joined.member_id,
                generation=joined.generation,
                assignments=assignments,
            ),
            reply,
        )
        return reply

    def heartbeat(self, joined: JoinResult, instance_id: str | None = None) -> ErrorCode:
        return self.coordinator.heartbeat("g", joined.member_id, joined.generation, instance_id)

    async def stable(self, count: int, **options: Any) -> list[JoinResult]:
        """Let `count` members join and sync; the leader is first."""
        members = await self.first_generation([self.join(**options) for _ in range(count)])
        syncs = [self.sync(member) for member in [*members[1:], members[0]]]
        assert [sync.error for sync in syncs] == [ErrorCode.NONE] * count
        return members

    async def first_generation(self, replies: list[Reply]) -> list[JoinResult]:
        """Wait for the initial delay, which is extended once if there are several."""
        await asyncio.sleep(3 * min(2, len(replies)) + MOMENT)
        return [reply.joined for reply in replies]

    def state(self) -> GroupState:
        return self.group.state

    @property
    def group(self) -> Group:
        return self.coordinator.groups["g"]


@pytest.fixture
def bench(purgatory: Purgatory) -> Bench:
    """A coordinator that is open during the test."""
    return Bench(purgatory)


async def test_the_initial_delay_is_extended_while_members_arrive(bench: Bench) -> None:
    """Each delay in which a new one came is followed by another, up to the rebalance timeout."""
    replies = [bench.join()]
    for _ in range(3):
        await asyncio.sleep(2)
        replies.append(bench.join())
    # Joins at 0, 2, 4, 6; the delays end at 3, 6 and 9, the last of them without anyone new.
    await asyncio.sleep(2.999)
    assert replies[0].error is None
    await asyncio.sleep(0.001 + MOMENT)
    assert {reply.joined.generation for reply in replies} == {1}
    assert [len(reply.joined.members) for reply in replies] == [4, 0, 0, 0]


async def test_the_rebalance_timeout_drops_those_who_did_not_rejoin(bench: Bench) -> None:
    """At the longest rebalance timeout whoever has joined goes on; heartbeats alone do not help."""
    leader, follower = await bench.stable(2, rebalance_timeout_ms=20_000, session_timeout_ms=10**6)
    new = bench.join(rebalance_timeout_ms=5_000)
    assert bench.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    again = bench.join(follower.member_id, rebalance_timeout_ms=20_000)
    await asyncio.sleep(19.99)
    assert again.error is new.error is None
    await asyncio.sleep(0.01 + MOMENT)
    assert {again.joined.leader_id, new.joined.leader_id} == {follower.member_id}
    assert bench.heartbeat(leader) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_an_expired_session_removes_the_member(bench: Bench) -> None:
    """A silent member is out after its session timeout, never before, and the others rebalance."""
    leader, follower = await bench.stable(2, session_timeout_ms=10_000)
    await asyncio.sleep(9)
    assert bench.heartbeat(leader) is ErrorCode.NONE
    await asyncio.sleep(0.99 - MOMENT)
    assert bench.state() is GroupState.STABLE
    await asyncio.sleep(0.01 + 2 * MOMENT)
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert bench.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID
    joined = bench.join(leader.member_id).joined
    assert (joined.generation, len(joined.members)) == (2, 1)


async def test_a_leader_that_never_assigns_is_dropped(bench: Bench) -> None:
    """At the rebalance timeout whoever has not synced is out, and those who wait join again."""
    replies = [bench.join(rebalance_timeout_ms=20_000, session_timeout_ms=6_000) for _ in range(2)]
    leader, follower = await bench.first_generation(replies)
    parked = bench.sync(follower)
    for _ in range(4):
        await asyncio.sleep(4.9)
        assert bench.heartbeat(leader) is ErrorCode.NONE
    await asyncio.sleep(0.4 + MOMENT)
    assert parked.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(leader) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.join(follower.member_id).joined.leader_id == follower.member_id


async def test_a_new_member_joins_with_the_id_that_it_was_told(bench: Bench) -> None:
    """KIP-394: the others wait for it, until its session ends; the id is kept."""
    (leader,) = await bench.stable(1, session_timeout_ms=60_000)
    told = bench.join(requires_known_id=True, client_id="c", session_timeout_ms=6_000)
    assert told.error is ErrorCode.MEMBER_ID_REQUIRED
    member_id = told.results[0].member_id
    assert bench.group.state is GroupState.STABLE and member_id.startswith("c-")
    joining = bench.join(member_id)
    assert bench.join(leader.member_id).joined.generation == joining.joined.generation == 2
    assert joining.joined.member_id == member_id
    bench.sync(joining.joined)
    bench.sync(bench.join(leader.member_id).joined)
    bench.join(requires_known_id=True, session_timeout_ms=6_000)
    again = [bench.join(leader.member_id), bench.join(member_id)]
    assert [each.error for each in again] == [None, None]
    await asyncio.sleep(6 + MOMENT)
    assert {each.joined.generation for each in again} == {3}


async def test_a_static_member_restarts_without_a_rebalance(bench: Bench) -> None:
    """KIP-345: it gets a new id in the same generation, and the one before is fenced."""
    (leader,) = await bench.stable(1, session_timeout_ms=60_000)
    first = bench.join(instance_id="i", session_timeout_ms=60_000)
    leader = bench.join(leader.member_id, session_timeout_ms=60_000).joined
    bench.sync(first.joined)
    bench.sync(leader, **{first.joined.member_id: b"part"})
    back = bench.join(instance_id="i", session_timeout_ms=60_000).joined
    assert (back.generation, bench.group.state) == (leader.generation, GroupState.STABLE)
    assert back.member_id != first.joined.member_id
    assert bench.sync(back).results == [
        SyncResult(protocol_type="consumer", protocol="range", assignment=b"part")
    ]
    assert bench.heartbeat(first.joined, "i") is ErrorCode.FENCED_INSTANCE_ID
    assert bench.coordinator.leave("g", "", "i") is ErrorCode.NONE


async def test_a_static_member_outlives_the_rebalance_timeout(bench: Bench) -> None:
    """It has its session to return; if all that are left are such, the group waits on for one."""
    options: dict[str, Any] = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 10_000}
    replies = [bench.join(instance_id=name, **options) for name in "ab"]
    a, b = await bench.first_generation(replies)
    bench.sync(b)
    bench.sync(a)
    rejoined = bench.join(a.member_id, instance_id="a", **options)
    await asyncio.sleep(10 + MOMENT)
    assert rejoined.joined.generation == 2
    assert {each for each, _, _ in rejoined.joined.members} == {a.member_id, b.member_id}


async def test_a_rebalance_timeout_has_no_bound(bench: Bench) -> None:
    """`max.poll.interval.ms` may be an hour."""
    assert len(await bench.stable(2, rebalance_timeout_ms=3_600_000)) == 2


async def test_a_group_without_members_keeps_its_generation_for_a_while(bench: Bench) -> None:
    """The next member goes on counting; if nobody comes, the group is forgotten."""
    (only,) = await bench.stable(1)
    assert bench.coordinator.leave("g", only.member_id) is ErrorCode.NONE
    assert (bench.group.state, bench.group.generation) == (GroupState.EMPTY, 2)
    await asyncio.sleep(599)
    reply = bench.join(protocols=[("other", b"")], protocol_type="connect")
    await asyncio.sleep(3 + MOMENT)
    assert (reply.joined.generation, reply.joined.protocol) == (3, "other")
    assert bench.coordinator.delete("g") is ErrorCode.NON_EMPTY_GROUP
    bench.coordinator.leave("g", reply.joined.member_id)
    await asyncio.sleep(599.9)
    assert bench.group.state is GroupState.EMPTY
    await asyncio.sleep(0.1 + MOMENT)
    assert bench.coordinator.delete("g") is ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.purgatory.parked == 0


async def test_what_is_refused(bench: Bench) -> None:
    """Each has its own code, and nothing changes."""
    (leader,) = await bench.stable(1)
    refused: list[tuple[ErrorCode, dict[str, Any]]] = [
        (ErrorCode.UNKNOWN_MEMBER_ID, {"member_id": "x"}),
        (ErrorCode.INVALID_SESSION_TIMEOUT, {"session_timeout_ms": 5_999}),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, {"protocols": [("o", b"")]}),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, {"protocols": []}),
    ]
    for error, options in refused:
        assert bench.join(**options).error is error
    old = JoinResult(member_id=leader.member_id, generation=9)
    assert bench.heartbeat(old) is bench.sync(old).error is ErrorCode.ILLEGAL_GENERATION
    assert bench.coordinator.leave("g", "x") is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.group.state is GroupState.STABLE
    for _ in range(3):
        bench.join()
    assert bench.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED


async def test_offsets_are_of_members_of_this_generation(bench: Bench) -> None:
    """Or of anybody while the group has none; they outlive the members."""
    commit, partition = bench.coordinator.commit, ("t", 0)
    assert commit("g", "", -1, {partition: CommittedOffset(5)}) == {partition: ErrorCode.NONE}
    (leader,) = await bench.stable(1)
    member = leader.member_id
    for member_id, generation, error in [
        (member, 1, ErrorCode.NONE),
        (member, 2, ErrorCode.ILLEGAL_GENERATION),
        ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        errors = commit("g", member_id, generation, {partition: CommittedOffset(7)})
        assert errors == {partition: error}
    large = CommittedOffset(8, metadata="x" * 4097)
    assert commit("g", member, 1, {partition: large}) == {
        partition: ErrorCode.OFFSET_METADATA_TOO_LARGE
    }
    bench.coordinator.leave("g", member)
    assert bench.coordinator.offsets("g") == {partition: CommittedOffset(7)}
    bench.coordinator.forget_topic("t")
    assert bench.coordinator.offsets("g") == {}


async def test_a_coordinator_that_is_closed_changes_nothing(
    make_purgatory: Callable[..., Purgatory],
) -> None:
    """What cannot be parked is refused before the state changes, before it opens and after."""
    purgatory = make_purgatory()
    bench = Bench(purgatory)
    assert bench.join().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    async with purgatory:
        (leader,) = await bench.stable(1)
        await purgatory.drain()
        for error in (
            bench.join().error,
            bench.sync(leader).error,
            bench.heartbeat(leader),
            bench.coordinator.leave("g", leader.member_id),
        ):
            assert error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert bench.group.state is GroupState.STABLE


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


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "join",
                "join in two steps",
                "join as a static member",
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
            )
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
        self.replies: list[Reply] = []
        # {member id: the newest result of a join of its}
        self.members: dict[str, JoinResult] = {}

    async def step(self, what: str, number: int) -> None:
        session_ms = 6_000 + 1000 * number
        if what == "wait":
            await asyncio.sleep(number)
        elif what == "join":
            self._join(session_timeout_ms=session_ms)
        elif what == "join in two steps":
            self._join(session_timeout_ms=session_ms, requires_known_id=True)
        elif what == "join as a static member":
            self._join(session_timeout_ms=session_ms, instance_id=f"i{number % 2}")
        elif what == "withdraw" and self.replies:
            reply = self.replies[-1 - number % len(self.replies)]
            self.bench.coordinator.withdraw("g", reply)
        elif self.members:
            members = list(self.members.values())
            is_for_all = what.startswith("all ")
            for member in members if is_for_all else [members[-1 - number % len(members)]]:
                self._ask(what.removeprefix("all "), member)
        for reply in self.replies:
            self._note(reply)

    def _ask(self, what: str, member: JoinResult) -> None:
        known = self.bench.coordinator.groups.get("g")
        instance_id = None
        if known is not None and member.member_id in known.members:
            instance_id = known.members[member.member_id].instance_id
        if what == "rejoin":
            self._join(member.member_id, instance_id=instance_id)
        elif what == "rejoin otherwise":
            self._join(member.member_id, instance_id=instance_id, protocols=[("range", b"new")])
        elif what == "sync":
            self.replies.append(self.bench.sync(member))
        elif what == "heartbeat":
            self.bench.heartbeat(member)
        elif what == "leave":
            self.bench.coordinator.leave("g", member.member_id)

    def _join(self, member_id: str = "", **options: Any) -> None:
        self.replies.append(self.bench.join(member_id, rebalance_timeout_ms=15_000, **options))

    def _note(self, reply: Reply) -> None:
        for result in reply.results:
            is_joined = result.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)
            if isinstance(result, JoinResult) and is_joined:
                older = self.members.get(result.member_id)
                if older is None or result.generation >= older.generation:
                    self.members[result.member_id] = result

    def check(self) -> None:
        waiting = self.bench.purgatory.waiting
        group = self.bench.coordinator.groups.get("g")
        if group is None:
            assert self.bench.purgatory.parked == 0
            return
        waits_for_joins = group.state in (GroupState.PREPARING_REBALANCE, GroupState.EMPTY)
        syncs = waiting(("sync", "g"))
        sessions = [
            waiting(("member", "g", each.member_id)) == (each.is_new or not each.is_waiting)
            for each in group.members.values()
        ]
        assert waiting(("join", "g")) == waits_for_joins
        assert syncs <= (not waits_for_joins)
        assert syncs == 1 or group.state is not GroupState.COMPLETING_REBALANCE
        assert all(sessions)
        # A reply is outstanding for each that waits, and for nobody else.
        outstanding = sum(not reply.results for reply in self.replies)
        assert outstanding == sum(each.is_waiting for each in group.members.values())
        # Nothing else waits: what belongs to a member that is gone is gone.
        expected = sum(each.is_new or not each.is_waiting for each in group.members.values())
        expected += waits_for_joins + syncs + len(group.pending)
        assert self.bench.purgatory.parked == expected


@settings(max_examples=by_night(100, 40), deadline=None)
@given(st.integers(1, 3), STEPS)
def test_whatever_happens_everyone_is_waited_for_exactly_once(
    members: int, steps: list[tuple[str, int]]
) -> None:
    """A member is parked or has one session; a group in need of joins or syncs has one wait."""
    beginning = [("join", 7)] * members + [("wait", 7)]

    async def run() -> None:
        async with Purgatory(clock=current_clock()) as purgatory:
            walk = _Walk(Bench(purgatory))
            for what, number in beginning + steps:
                await walk.step(what, number)
                walk.check()
            # Everyone falls silent: all requests are answered, all sessions end, all is forgotten.
            await asyncio.sleep(2000)
            assert all(reply.results for reply in walk.replies)
            assert purgatory.statistics().timers == 0

    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runner.run(run())
