"""The laws of the timer, against a sorted list.

Whatever is added, cancelled, added again, and done from inside a task: a task runs exactly once,
never early, less than a tick late where the timer is advanced at each next expiration, in order of
deadline and first come within a tick; one that was cancelled never runs; the length is exact, and
the next expiration is None iff nothing is pending.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import assume, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory.testing import MockClock
from purgatory.timer import MAX_DELAY_MS, ScheduledCall, SystemTimer, TimerTask
from purgatory.timer.clock import NS_PER_MS

HOUR_MS = 3_600_000

near = st.integers(-5, 40)


def in_ns(ms: int) -> int:
    return ms * NS_PER_MS


delays = st.one_of(
    st.integers(-1, 3),
    near,
    st.integers(0, 2_000),
    st.integers(0, 10**7),
    st.sampled_from([MAX_DELAY_MS, MAX_DELAY_MS - 1, 10**11]),
)


@dataclass(frozen=True)
class Action:
    """What a task does when it runs: something with the task of an index, or with itself."""

    what: str
    index: int
    delay_ms: int


actions = st.builds(
    Action,
    st.sampled_from(["add", "cancel", "again", "call", "cancel call", "fail", "dawdle"]),
    st.integers(0, 9),
    st.one_of(st.integers(-1, 3), near),
)


class Task(TimerTask):
    """Tells the machine that it runs."""

    def __init__(self, machine: "TimerMachine", index: int) -> None:
        super().__init__(0)
        self.machine = machine
        self.index = index
        self.script: tuple[Action, ...] = ()

    def __repr__(self) -> str:
        return f"<task {self.index}>"

    def run(self) -> None:
        self.machine.note_run(self, self.script)


@dataclass(frozen=True)
class Due:
    """What the model knows of a pending task."""

    deadline_ms: int
    arrival: int
    at_ns: int
    """When its delay has passed, to the nanosecond."""
    is_next_advance: bool
    """Added without delay by a task: it is not part of the advance under way."""


class TimerMachine(RuleBasedStateMachine):
    """The timer under test, beside a dict of what is pending."""

    @initialize(
        tick_ms=st.integers(1, 7),
        wheel_size=st.integers(2, 6),
        start_ms=st.integers(0, 1_000),
        start_ns=st.sampled_from([0, 1, 500_000, 999_999]),
    )
    def start(self, tick_ms: int, wheel_size: int, start_ms: int, start_ns: int) -> None:
        self.clock = MockClock(start_ms)
        self.clock.advance_ns(start_ns)
        self.tick_ms = tick_ms
        self.timer = SystemTimer(tick_ms=tick_ms, wheel_size=wheel_size, clock=self.clock)
        self.tasks = [Task(self, index) for index in range(10)]
        self.calls: list[ScheduledCall] = []
        self.pending: dict[TimerTask, Due] = {}
        self.arrivals = 0
        self.runs = 0
        self.broken: list[AssertionError] = []
        self.is_advancing = False
        # Set while tasks take no time; and while the timer is advanced at each next expiration.
        self.is_quick = False
        self.is_punctual = False
        self.actions_left = 0
        # The time until which an owner sleeps, who goes by `on_earlier` and what it found before.
        self.armed_ms: int | None = None
        self.timer.on_earlier = self.arm

    def arm(self, time_ms: int) -> None:
        if self.armed_ms is None or time_ms < self.armed_ms:
            self.armed_ms = time_ms

    # What a test does to the timer

    def add(self, task: Task, delay_ms: int) -> None:
        task.delay_ms = delay_ms
        self.timer.add(task)
        self.note_added(task, delay_ms)

    def call(self, delay_ms: int, script: tuple[Action, ...] = ()) -> None:
        """Have the timer make a call, or add one: both may end like every other task."""
        made: list[ScheduledCall] = []

        def note(script: tuple[Action, ...]) -> None:
            self.note_run(made[0], script)

        if len(self.calls) % 2:
            made.append(ScheduledCall(delay_ms, note, script))
            self.timer.add(made[0])
        else:
            made.append(self.timer.call_later(delay_ms, note, script))
        self.calls += made
        self.note_added(made[0], delay_ms)

    def cancel_call(self, index: int) -> None:
        """Cancel one of the latest calls, pending or not."""
        if index < len(self.calls):
            self.cancel(self.calls[-1 - index])

    def note_added(self, task: TimerTask, delay_ms: int) -> None:
        at_ns = self.clock.now_ns() + max(0, delay_ms) * NS_PER_MS
        tick_ns = self.tick_ms * NS_PER_MS
        if delay_ms > 0:
            deadline_ms = -(-at_ns // tick_ns) * self.tick_ms
        else:
            deadline_ms = self.clock.now_ns() // tick_ns * self.tick_ms
        assert task.expiration_ms == deadline_ms
        self.arrivals += 1
        is_next = delay_ms <= 0 and self.is_advancing
        self.pending[task] = Due(deadline_ms, self.arrivals, at_ns, is_next)

    def cancel(self, task: TimerTask) -> None:
        assert task.cancel() == (self.pending.pop(task, None) is not None)

    def note_run(self, task: TimerTask, script: tuple[Action, ...]) -> None:
        try:
            self.ran(task, script)
        except AssertionError as broken:
            # The timer would log it and go on.
            self.broken.append(broken)

    def ran(self, task: TimerTask, script: tuple[Action, ...]) -> None:
        """A task runs: that has to be its turn."""
        now_ns = self.clock.now_ns()
        assert task in self.pending, f"{task} was not pending: it ran twice, or was cancelled"
        due = self.pending[task]
        assert now_ns >= due.at_ns, f"{task} ran early"
        assert not due.is_next_advance, f"{task} ran in the advance in which it was added"
        first = min(
            (other for other in self.pending.values() if not other.is_next_advance),
            key=lambda other: (other.deadline_ms, other.arrival),
        )
        assert due is first, f"{task} ran before its turn"
        if self.is_punctual:
            assert now_ns - due.at_ns < self.tick_ms * NS_PER_MS, f"{task} ran late"
        del self.pending[task]
        assert not task.is_pending
        assert len(self.timer) == len(self.pending)
        self.runs += 1
        for action in script:
            self.act(task, action)

    def act(self, task: TimerTask, action: Action) -> None:
        """Do what a task does when it runs; only so many times, so that an advance ends."""
        if self.actions_left <= 0:
            return
        self.actions_left -= 1
        if action.what == "add":
            self.add(self.tasks[action.index], action.delay_ms)
        elif action.what == "cancel":
            self.cancel(self.tasks[action.index])
        elif action.what == "call":
            self.call(action.delay_ms)
        elif action.what == "cancel call":
            self.cancel_call(action.index)
        elif action.what == "again" and isinstance(task, Task):
            self.add(task, action.delay_ms)
        elif action.what == "dawdle" and not self.is_quick:
            self.clock.advance_ns(max(0, action.delay_ms) * 700_000)
        elif action.what == "fail":
            raise ZeroDivisionError("on purpose")

    def advance(self, limit: int | None = None) -> int:
        before = self.runs
        self.is_advancing = True
        self.actions_left = 20
        ran = self.timer.advance_clock(limit)
        self.is_advancing = False
        if self.broken:
            raise self.broken[0]
        assert ran == self.runs - before
        assert limit is None or ran <= limit
        for task, due in self.pending.items():
            if due.is_next_advance:
                self.pending[task] = Due(due.deadline_ms, due.arrival, due.at_ns, False)
        self.armed_ms = self.timer.next_expiration_ms()
        return ran

    def now_ms(self) -> int:
        return self.clock.now_ns() // NS_PER_MS

    def step(self) -> None:
        """Move the clock to the next expiration, and advance."""
        next_ms = self.timer.next_expiration_ms()
        assert next_ms is not None
        # Told to the nanosecond: no task has to wait for the rest of a millisecond.
        self.clock.advance_ns(max(0, next_ms * NS_PER_MS - self.clock.now_ns()))
        self.advance()

    # Rules

    @rule(
        added=st.lists(
            st.tuples(st.integers(0, 9), delays, st.lists(actions, max_size=3).map(tuple)),
            min_size=1,
            max_size=4,
        )
    )
    def add_tasks(self, added: list[tuple[int, int, tuple[Action, ...]]]) -> None:
        """Add some tasks, or add them again."""
        for index, delay_ms, script in added:
            self.tasks[index].script = script
            self.add(self.tasks[index], delay_ms)

    @rule(indices=st.sets(st.integers(0, 9), min_size=1))
    def cancel_tasks(self, indices: set[int]) -> None:
        """Cancel some, pending or not."""
        for index in indices:
            self.cancel(self.tasks[index])

    @rule(
        made=st.lists(
            st.tuples(delays, st.lists(actions, max_size=3).map(tuple)), min_size=1, max_size=6
        )
    )
    def make_calls(self, made: list[tuple[int, tuple[Action, ...]]]) -> None:
        """Have the timer make some calls."""
        for delay_ms, script in made:
            self.call(delay_ms, script)

    @rule(indices=st.lists(st.integers(0, 7), min_size=1, max_size=4))
    def cancel_calls(self, indices: list[int]) -> None:
        """Cancel some of the latest, pending or not."""
        for index in indices:
            self.cancel_call(index)

    @rule(ms=st.one_of(st.integers(0, 60), st.integers(0, HOUR_MS)))
    def leap(self, ms: int) -> None:
        """The clock leaps, and one advance runs everything that became due."""
        self.clock.advance(ms)
        self.advance()
        self.nothing_is_overdue()

    @rule(ns=st.one_of(st.integers(0, 3 * NS_PER_MS), st.sampled_from([1, 5, 30]).map(in_ns)))
    def pass_time(self, ns: int) -> None:
        """Time passes, and nobody advances the timer."""
        self.clock.advance_ns(ns)

    @rule(ms=st.one_of(st.integers(0, 20), st.integers(0, 2_000)), limit=st.integers(0, 5))
    def advance_a_little(self, ms: int, limit: int) -> None:
        """Less than what is due may run; what is left says so."""
        self.clock.advance(ms)
        self.advance(limit)

    @rule(ms=st.one_of(st.integers(0, 300), st.integers(0, 5 * HOUR_MS)))
    def be_punctual(self, ms: int) -> None:
        """Advance at each next expiration: nothing is as much as a tick late."""
        self.is_quick = True
        self.advance()
        until_ms = self.now_ms() + ms
        self.is_punctual = True
        steps = 0
        while (next_ms := self.timer.next_expiration_ms()) is not None and next_ms <= until_ms:
            steps += 1
            # A task that adds itself with a delay of a tick goes on for ever: that is no fault.
            if steps > 200:
                break
            self.step()
        else:
            self.clock.advance(max(0, until_ms - self.now_ms()))
        self.is_quick = self.is_punctual = False

    @rule()
    def step_once(self) -> None:
        """Go to the next expiration."""
        if self.pending:
            self.step()

    @precondition(lambda self: len(self.pending) > 6)
    @rule(limit=st.integers(0, 8), ms=st.integers(0, 100))
    def close(self, limit: int, ms: int) -> None:
        """Everything comes out, in order of deadline, and nothing of it runs."""
        self.clock.advance(ms)
        self.advance(limit)
        closed = self.timer.close()
        assert set(closed) == set(self.pending) and len(closed) == len(self.pending)
        deadlines = [task.expiration_ms for task in closed]
        assert deadlines == sorted(deadlines)
        self.pending.clear()
        self.armed_ms = None

    # Invariants

    @invariant()
    def the_length_is_exact(self) -> None:
        assert len(self.timer) == len(self.pending)
        for task in [*self.tasks, *self.calls]:
            assert task.is_pending == (task in self.pending)

    @invariant()
    def the_next_expiration_is_none_iff_nothing_is_pending(self) -> None:
        next_ms = self.timer.next_expiration_ms()
        assert (next_ms is None) == (not self.pending)
        if next_ms is not None:
            first_ms = min(due.deadline_ms for due in self.pending.values())
            assert next_ms <= max(first_ms, self.now_ms())

    @invariant()
    def whoever_sleeps_until_the_next_expiration_is_told_of_an_earlier_one(self) -> None:
        if self.pending:
            first_ms = min(due.deadline_ms for due in self.pending.values())
            assert self.armed_ms is not None
            assert self.armed_ms <= max(first_ms, self.now_ms())

    @invariant()
    def the_statistics_of_the_wheel_add_up(self) -> None:
        levels = self.timer.wheel.levels()
        assert sum(len(bucket) for level in levels for bucket in level.buckets()) <= len(self.timer)

    def nothing_is_overdue(self) -> None:
        # `dawdle` moves the clock on while tasks run: what became due by that is for the next time.
        overdue = [due for due in self.pending.values() if due.deadline_ms <= self.now_ms()]
        next_ms = self.timer.next_expiration_ms()
        assert not overdue or (next_ms is not None and next_ms <= self.now_ms())

    def teardown(self) -> None:
        """In the end everything runs that was not cancelled, and nothing is left."""
        if not hasattr(self, "timer"):
            return
        for task in self.tasks:
            task.script = ()
        self.advance()
        left = len(self.pending)
        for _ in range(60 * 10):
            if not self.pending:
                break
            self.step()
        note(f"{left} tasks were left")
        assert (len(self.timer), self.timer.next_expiration_ms(), self.pending) == (0, None, {})
        assert not any(level.buckets() for level in self.timer.wheel.levels())
        assert self.timer.wheel.queue == []


TestTimerLaws = TimerMachine.TestCase


class BackwardMachine(RuleBasedStateMachine):
    """A clock that steps back and leaps: nothing is early by its own reading, nothing is lost."""

    @initialize(tick_ms=st.integers(1, 7), wheel_size=st.integers(2, 6))
    def start(self, tick_ms: int, wheel_size: int) -> None:
        self.clock = MockClock(10_000)
        self.timer = SystemTimer(tick_ms=tick_ms, wheel_size=wheel_size, clock=self.clock)
        self.latest_ns = self.clock.now_ns()
        self.added = 0
        self.ran = 0
        # An error in a task would be logged by the timer.
        self.is_broken = False

    def raise_what_broke(self) -> None:
        assert not self.is_broken, "a task ran early"

    def move(self, ms: int) -> None:
        self.clock.advance(ms)
        self.latest_ns = max(self.latest_ns, self.clock.now_ns())

    def expect(self, not_before_ns: int) -> Callable[[], None]:
        def check() -> None:
            self.is_broken |= self.latest_ns < not_before_ns
            self.ran += 1

        return check

    @rule(delay_ms=st.one_of(near, st.integers(0, 5_000)))
    def add(self, delay_ms: int) -> None:
        check = self.expect(self.clock.now_ns() + delay_ms * NS_PER_MS)
        assert self.timer.call_later(delay_ms, check).is_pending
        self.added += 1

    @rule(
        ms=st.one_of(st.integers(-50, 50), st.integers(-5_000, HOUR_MS)),
        limit=st.one_of(st.none(), st.integers(0, 5)),
    )
    def move_the_clock(self, ms: int, limit: int | None) -> None:
        assume(self.clock.wall_ms() + ms >= 0)
        self.move(ms)
        self.timer.advance_clock(limit)
        self.raise_what_broke()

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.timer) == self.added - self.ran

    def teardown(self) -> None:
        if hasattr(self, "timer"):
            self.move(10 * HOUR_MS)
            self.timer.advance_clock()
            self.raise_what_broke()
            assert (len(self.timer), self.ran) == (0, self.added)


TestTimerLawsOfABadClock = BackwardMachine.TestCase
