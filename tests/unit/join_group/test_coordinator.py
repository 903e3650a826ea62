"""The group coordinator in virtual time: case 33, its deadlines, and what it refuses."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.join_group import errors
from examples.join_group.assignors import ASSIGNORS
from examples.join_group.coordinator import Coordinator
from examples.join_group.protocol_selection import select_protocol
from examples.join_group.reply import Reply
from examples.join_group.schemas import (
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    SyncRequest,
    SyncResponse,
)
from examples.join_group.settings import CoordinatorSettings
from examples.join_group.state_table import GroupState
from examples.join_group.watch_keys import heartbeat_key, join_key, sync_key
from purgatory import Purgatory
from purgatory.testing import AutojumpEventLoop, current_clock
from tests.cases import cases
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture

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

RawResponse = TypeVar("RawResponse", JoinResponse, SyncResponse)


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
    ) -> Reply[JoinResponse]:
        names = {"range": ""} if protocols is None else protocols
        body = [{"name": name, "metadata": metadata} for name, metadata in names.items()]
        return self.coordinator.join(
            group, JoinRequest(member_id=member_id, protocols=body, **options)
        )

    def sync(
        self, joined: JoinResponse, assignments: Mapping[str, list[int]] | None = None
    ) -> Reply[SyncResponse]:
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

    async def response(self, reply: Reply[RawResponse]) -> RawResponse:
        """Park until `reply` is answered, as an endpoint does."""
        await self.purgatory.park(reply.key, timeout=PATIENCE, until=reply.is_complete)
        return reply.result()

    async def joined(self, count: int = 1, **options: Any) -> list[JoinResponse]:
        """Let `count` members join together, and return what they are told; the leader is first."""
        replies = [self.join(**options) for _ in range(count)]
        return [await self.response(reply) for reply in replies]

    async def stable(self, count: int, **options: Any) -> list[JoinResponse]:
        """Let `count` members join and sync."""
        members = await self.joined(count, **options)
        await self.all_sync(members)
        return members

    async def all_sync(self, members: list[JoinResponse]) -> None:
        replies = [self.sync(member) for member in members[1:]]
        replies.append(self.sync(members[0], {members[0].member_id: [0]}))
        for reply in replies:
            await self.response(reply)

    @property
    def state(self) -> GroupState:
        return self.coordinator.describe("g").state

    def waiting(self, key: str) -> int:
        return self.purgatory.waiting(key)


@pytest.fixture
def bench(purgatory: Purgatory) -> Bench:
    """A coordinator that is open during the test."""
    return Bench(purgatory)


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
        self.answers: dict[str, JoinResponse] = {}

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

    def _ask_as(self, what: str, member: JoinResponse) -> None:
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
        if isinstance(answer, JoinResponse):
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
        outstanding = [reply.member_id for reply in self.replies if not reply.is_complete()]
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
        async with Purgatory(clock=current_clock()) as purgatory:
            walk = _Walk(Bench(purgatory))
            for what, number in beginning + steps:
                await walk.step(what, number)
                walk.check()
            # Everyone falls silent: all requests are answered, all sessions end, all is forgotten.
            await asyncio.sleep(2000)
            assert all(reply.is_complete() for reply in walk.replies)
            assert purgatory.statistics().timers == 0

    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runner.run(run())
