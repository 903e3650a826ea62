"""The law of the coordinator: everyone is waited for exactly once."""

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from examples.join_group import errors
from examples.join_group.reply import Reply
from examples.join_group.schemas import JoinResponse
from examples.join_group.state_table import GroupState
from examples.join_group.watch_keys import heartbeat_key, join_key, sync_key
from purgatory import Purgatory
from purgatory.testing import AutojumpEventLoop
from tests.unit.join_group.group_bench import Bench

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
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        async with Purgatory(clock=loop.clock) as purgatory:
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
