"""The laws of DelayedOperationPurgatory, with callbacks that come back into it.

Whatever is watched, checked, cancelled, completed by hand, walked in steps or left to its deadline,
from outside and from inside a callback, and whatever fails: an operation has exactly one outcome
and is called back once; it has left the timer and every key before that; every count is exact at
any time; and in the end nothing is left behind.
"""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory import DelayedOperation, PurgatoryClosedError, Status
from purgatory.operations import DelayedOperationPurgatory, OperationEvent
from purgatory.operations.resumable_batch import ResumableBatch
from purgatory.operations.watch_key import watch_bytes
from purgatory.testing import MockClock
from purgatory.timer import SystemTimer

KEYS = "abc"

CALLS = {
    Status.PENDING: [],
    Status.FIRED: ["complete"],
    Status.EXPIRED: ["complete", "expiration"],
    Status.CANCELLED: ["cancellation"],
    Status.DRAINED: ["cancellation"],
}


@dataclass(frozen=True)
class Action:
    """What a callback does: something to a key, or to the operation of a number."""

    what: str
    key: str
    number: int


@dataclass(frozen=True)
class Plan:
    """How an operation behaves."""

    delay_ms: int
    keys: tuple[str, ...]
    ready_at: int
    """The try from which on its condition holds; 0 for when it is told."""
    fails_at: int
    """The try that raises; 0 for none."""
    script: tuple[Action, ...]
    """What its callback does."""


actions = st.builds(
    Action,
    st.sampled_from(
        ["check", "cancel key", "watch", "make ready", "complete", "cancel", "try", "fail"]
    ),
    st.sampled_from(KEYS),
    st.integers(0, 10),
)
plans = st.builds(
    Plan,
    delay_ms=st.integers(-1, 30),
    keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3).map(tuple),
    ready_at=st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    fails_at=st.sampled_from([0, 0, 0, 0, 1, 2, 3]),
    script=st.lists(actions, max_size=3).map(tuple),
)


class Planned(DelayedOperation):
    """Behaves as planned, and tells the machine."""

    def __init__(self, machine: "PurgatoryMachine", number: int, plan: Plan) -> None:
        super().__init__(plan.delay_ms)
        self.machine = machine
        self.number = number
        self.plan = plan
        self.tries = 0
        self.is_ready = False
        self.due_ms = 0
        self.was_watched = False
        self.calls: list[str] = []
        self.events: list[OperationEvent] = []

    def __repr__(self) -> str:
        return f"<operation {self.number}>"

    def try_complete(self) -> bool:
        self.tries += 1
        self.machine.tried(self)
        if self.tries == self.plan.fails_at:
            raise ZeroDivisionError("on purpose")
        is_ready = self.is_ready or 0 < self.plan.ready_at <= self.tries
        return is_ready and self.force_complete()

    def on_complete(self) -> None:
        self.machine.called(self, "complete")

    def on_expiration(self) -> None:
        self.calls.append("expiration")

    def on_cancellation(self) -> None:
        self.machine.called(self, "cancellation")


class PurgatoryMachine(RuleBasedStateMachine):
    """The purgatory under test, beside a dict of what waits."""

    @initialize(tick_ms=st.sampled_from([1, 5]))
    def start(self, tick_ms: int) -> None:
        self.clock = MockClock()
        self.timer = SystemTimer(tick_ms=tick_ms, wheel_size=4, clock=self.clock)
        self.core = DelayedOperationPurgatory("test", self.timer, listeners=[self.hear])
        self.operations: list[Planned] = []
        self.waiting: dict[Planned, tuple[str, ...]] = {}
        self.walks: list[tuple[ResumableBatch, dict[Planned, int]]] = []
        self.broken: list[AssertionError] = []
        self.actions_left = 0

    # What the library calls

    def hear(self, event: OperationEvent) -> None:
        assert isinstance(event.operation, Planned)
        event.operation.events.append(event)

    def tried(self, operation: Planned) -> None:
        if operation.keys and operation not in self.waiting:
            self.waiting[operation] = tuple(dict.fromkeys(operation.plan.keys))
            operation.was_watched = True
            operation.due_ms = self.clock.wall_ms() + operation.delay_ms
            self.check(operation.keys == self.waiting[operation], "its keys are what it watches")

    def called(self, operation: Planned, call: str) -> None:
        operation.calls.append(call)
        self.waiting.pop(operation, None)
        self.check(operation.is_completed, "the status is set before the callback")
        self.check(not operation.is_pending, "the timer is left before the callback")
        self.check(operation.keys == (), "every key is left before the callback")
        is_early = self.clock.wall_ms() < operation.due_ms
        self.check(not is_early or operation.status is not Status.EXPIRED, "nothing expires early")
        self.counts_are_exact()
        for action in operation.plan.script:
            self.act(action)

    def check(self, holds: bool, law: str) -> None:
        """Remember a broken law: raised here, the library would log it and go on."""
        if not holds:
            self.broken.append(AssertionError(law))

    def counts_are_exact(self) -> None:
        core = self.core
        keys: dict[str, list[Planned]] = {}
        for operation, own in self.waiting.items():
            for key in own:
                keys.setdefault(key, []).append(operation)
        self.check(core.delayed == len(self.waiting), "delayed is exact")
        watches = sum(watch_bytes(keys) for keys in self.waiting.values() if len(keys) > 1)
        self.check(core.statistics().bytes == watches, "bytes are exact")
        self.check(core.watched == sum(map(len, self.waiting.values())), "watched is exact")
        self.check(set(core.keys()) == set(keys), "a key without operations holds nothing")
        self.check(set(core.operations()) == set(self.waiting), "who waits is known")
        for key in KEYS:
            # In order of arrival.
            self.check(core.watching(key) == keys.get(key, []), "watching is exact")
            self.check(core.count(key) == len(keys.get(key, [])), "count is exact")

    def act(self, action: Action) -> None:
        """Do what a callback does; only so many times, so that every rule ends."""
        if self.actions_left <= 0 or not self.operations:
            return
        self.actions_left -= 1
        target = self.operations[action.number % len(self.operations)]
        if action.what == "check":
            self.core.check_and_complete(action.key)
        elif action.what == "cancel key":
            self.core.cancel_for_key(action.key)
        elif action.what == "watch":
            plan = Plan(action.number % 5, (action.key,), action.number % 4, 0, target.plan.script)
            self.watch_it(plan)
        elif action.what == "make ready":
            target.is_ready = True
        elif action.what == "complete":
            target.force_complete()
        elif action.what == "cancel":
            target.cancel()
        elif action.what == "try" and target.keys:
            target.try_complete()
        elif action.what == "fail":
            raise ZeroDivisionError("on purpose")

    def watch_it(self, plan: Plan) -> None:
        operation = Planned(self, len(self.operations), plan)
        self.operations.append(operation)
        try:
            is_done = self.core.try_complete_else_watch(operation, plan.keys)
        except PurgatoryClosedError:
            self.check(self.core.is_closed, "only a closed purgatory refuses")
        except ZeroDivisionError:
            if not operation.is_completed:
                self.waiting.pop(operation, None)
                operation.was_watched = False
            self.check(operation.keys == (), "what raised is on no key")
            self.check(not operation.is_pending, "what raised is not timed")
            raise
        else:
            is_waiting = operation in self.waiting
            self.check(is_waiting == (not operation.is_completed), "it waits unless it ended")
            self.check(is_waiting == operation.is_pending, "it is timed iff it waits")
            self.check(not (is_done and is_waiting), "True means that it does not wait")

    def outermost(self) -> None:
        self.actions_left = 12

    # Rules

    @rule(several=st.lists(plans, min_size=1, max_size=5))
    def watch(self, several: list[Plan]) -> None:
        """Watch more operations."""
        self.outermost()
        for plan in several:
            try:
                self.watch_it(plan)
            except ZeroDivisionError:
                pass

    @rule(key=st.sampled_from(KEYS), ready=st.sets(st.integers(0, 10), min_size=1))
    def check_key(self, key: str, ready: set[int]) -> None:
        """Every operation that is on the key ends, or is tried."""
        self.outermost()
        self.make_ready(ready)
        before = {operation: operation.tries for operation in self.on(key)}
        count = self.core.check_and_complete(key)
        fired = [operation for operation in before if operation.status is Status.FIRED]
        assert count <= len(fired)
        for operation, tries in before.items():
            assert operation.is_completed or operation.tries > tries

    @rule(key=st.sampled_from(KEYS))
    def cancel_key(self, key: str) -> None:
        """Every operation that is on the key ends."""
        self.outermost()
        before = self.on(key)
        cancelled = self.core.cancel_for_key(key)
        assert [o for o in before if o in cancelled] == cancelled
        assert all(operation.status is Status.CANCELLED for operation in cancelled)
        assert all(operation.is_completed for operation in before)

    @precondition(lambda self: self.operations)
    @rule(number=st.integers(0, 10), way=st.sampled_from(["complete", "cancel"]))
    def end_one(self, number: int, way: str) -> None:
        """By hand: True for the one call that did it."""
        self.outermost()
        operation = self.operations[number % len(self.operations)]
        was_completed = operation.is_completed
        try:
            if way == "complete":
                assert operation.force_complete() == (not was_completed)
            else:
                assert operation.cancel() == (not was_completed)
        except ZeroDivisionError:
            assert not was_completed
        assert operation.is_completed

    @rule(key=st.sampled_from(KEYS), ready=st.sets(st.integers(0, 10), min_size=1))
    def begin_walk(self, key: str, ready: set[int]) -> None:
        """A check in steps, between which anything may happen."""
        self.make_ready(ready)
        before = {operation: operation.tries for operation in self.on(key)}
        self.walks.append((self.core.check_batch(key), before))

    @precondition(lambda self: self.walks)
    @rule(index=st.integers(0, 5), limit=st.integers(1, 4))
    def go_on_walking(self, index: int, limit: int) -> None:
        """At its end every operation that was there when it began has ended, or was tried."""
        self.outermost()
        walk, before = self.walks[index % len(self.walks)]
        if not walk.advance(limit):
            self.walks.remove((walk, before))
            for operation, tries in before.items():
                assert operation.is_completed or operation.tries > tries

    @rule(ms=st.integers(0, 40))
    def pass_time(self, ms: int) -> None:
        """Who is overdue expires."""
        self.outermost()
        self.clock.advance(ms)
        waiting = list(self.waiting)
        self.timer.advance_clock()
        for operation in waiting:
            # The deadline is rounded up to a tick: it is what the timer says.
            assert operation.is_completed or operation.expiration_ms > self.clock.wall_ms()

    def on(self, key: str) -> list[Planned]:
        return [operation for operation, keys in self.waiting.items() if key in keys]

    def make_ready(self, numbers: set[int]) -> None:
        """Let some of those that wait be completable."""
        for number, operation in enumerate(self.waiting):
            operation.is_ready = operation.is_ready or number in numbers

    # Invariants

    @invariant()
    def no_law_was_broken(self) -> None:
        self.counts_are_exact()
        if self.broken:
            raise self.broken[0]
        assert self.core.current_key is None
        assert len(self.timer) == len(self.waiting)

    @invariant()
    def every_operation_has_one_outcome_and_is_called_back_once(self) -> None:
        for operation in self.operations:
            assert operation.calls == CALLS[operation.status]
            assert (operation in self.waiting) == (operation.is_pending)

    @invariant()
    def statistics_are_exact(self) -> None:
        counts = dict.fromkeys(Status, 0)
        for operation in self.operations:
            counts[operation.status] += operation.was_watched
        statistics = self.core.statistics()
        assert statistics.fired == counts[Status.FIRED]
        assert statistics.expired == counts[Status.EXPIRED]
        assert statistics.cancelled == counts[Status.CANCELLED]
        assert statistics.drained == counts[Status.DRAINED]

    @invariant()
    def listeners_hear_of_each_step_once(self) -> None:
        for operation in self.operations:
            heard = [event.status for event in operation.events]
            if operation in self.waiting:
                assert heard == [Status.PENDING]
            else:
                # Who ended while it was tried for the second time was never seen to wait.
                assert heard in ([], [Status.PENDING, operation.status])
            for event in operation.events:
                assert event.key is None or event.key in event.keys
                assert event.keys == tuple(dict.fromkeys(operation.plan.keys))

    def teardown(self) -> None:
        """A shutdown ends everybody, whatever their callbacks do."""
        if not hasattr(self, "core"):
            return
        self.outermost()
        waiting = list(self.waiting)
        drained = self.core.shutdown()
        assert all(operation.is_completed for operation in waiting)
        assert all(operation.status is Status.DRAINED for operation in drained)
        self.no_law_was_broken()
        self.every_operation_has_one_outcome_and_is_called_back_once()
        self.statistics_are_exact()
        assert (self.core.keys(), self.core.operations(), len(self.timer)) == ([], [], 0)


TestPurgatoryLaws = PurgatoryMachine.TestCase
