"""The laws of WaitOperation, against a list of everything that fired.

Whatever fires in whichever order, a wait ends at the very signal that meets its condition and at no
other; a signal that made way counts; and every wait ends, and responds, exactly once.
"""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from purgatory import Status
from purgatory.limits import Limits
from purgatory.operations import DelayedOperationPurgatory
from purgatory.signals import Condition, MemorySignals, WaitOperation
from purgatory.testing import MockClock
from purgatory.timer import SystemTimer

KEYS = ("a", "b", "c", "d")


class Wait(WaitOperation):
    """Notes how it ended."""

    __slots__ = ("ends",)

    def on_complete(self) -> None:
        self.ends = [*getattr(self, "ends", []), self.status]


@dataclass
class Case:
    """A wait, and what of its keys fired before it began."""

    keys: tuple[str, ...]
    back: tuple[int, ...]
    """For each key, or once for all, how far before the head it waits from."""
    condition: Condition
    positions: dict[str, int] = field(default_factory=dict)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    keys = tuple(draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True)))
    length = draw(st.sampled_from([1, len(keys)]))
    back = tuple(draw(st.lists(st.integers(0, 3), min_size=length, max_size=length)))
    return Case(keys, back, Condition(draw(st.integers(1, 3)), draw(st.integers(1, len(keys)))))


def make_wait(case: Case, signals: MemorySignals) -> Wait:
    positions = [max(0, signals.head() - back) for back in case.back]
    is_single = len(positions) == 1
    each = positions * len(case.keys) if is_single else positions
    case.positions = dict(zip(case.keys, each, strict=True))
    given = positions[0] if is_single else tuple(positions)
    return Wait(1000, signals, case.keys, given, case.condition)


def is_met(case: Case, offsets: dict[str, list[int]]) -> bool:
    """The condition, in the words of its docstring."""
    counts = [
        sum(offset > case.positions[key] for offset in offsets[key]) >= case.condition.min_signals
        for key in case.keys
    ]
    return sum(counts) >= case.condition.needed_keys


fired = st.lists(st.sampled_from(KEYS), max_size=12)


@given(case=cases(), before=fired, after=fired)
def test_a_wait_ends_at_the_signal_that_meets_its_condition(
    case: Case, before: list[str], after: list[str]
) -> None:
    """At once where the history meets it, else at the first signal that does; else not at all."""
    clock = MockClock()
    signals, core = (
        MemorySignals(clock=clock),
        DelayedOperationPurgatory("p", SystemTimer(clock=clock)),
    )
    offsets: dict[str, list[int]] = {key: [] for key in KEYS}
    for key in before:
        offsets[key].append(signals.append(key, None).offset)
    wait = make_wait(case, signals)
    assert wait.positions == tuple(case.positions.values())
    assert core.try_complete_else_watch(wait, wait.watched_keys) == is_met(case, offsets)
    for key in after:
        assert wait.is_completed == is_met(case, offsets)
        offsets[key].append(signals.append(key, None).offset)
        core.check_and_complete(key)
    assert wait.is_completed == is_met(case, offsets)
    ended_before = wait.is_completed
    core.shutdown()
    assert wait.ends == [Status.FIRED if ended_before else Status.DRAINED]


@given(case=cases(), after=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12))
def test_a_signal_that_made_way_counts(case: Case, after: list[str]) -> None:
    """With room for one signal of each key, no wait is longer than with room for every one."""
    clock = MockClock()
    limits = Limits(max_signals=len(KEYS), max_signals_per_key=1)
    small = MemorySignals(clock=clock, limits=limits)
    large = MemorySignals(clock=clock)
    waits = [make_wait(case, signals) for signals in (small, large)]
    for key in after:
        small.append(key, None)
        large.append(key, None)
        for wait in waits:
            wait.try_complete()
        assert waits[0].is_completed or not waits[1].is_completed


@given(ends=st.lists(st.sampled_from(["fire", "expire", "cancel", "abandon", "force"]), min_size=1))
def test_a_wait_responds_once(ends: list[str]) -> None:
    """The first end counts, whatever follows; and an abandoned wait says that it is."""
    clock = MockClock()
    signals = MemorySignals(clock=clock)
    wait = Wait(10, signals, ("a",), 0)
    for count, end in enumerate(ends):
        if end == "fire":
            signals.append("a", None)
            wait.try_complete()
        elif end == "expire":
            wait.run()
        elif end == "cancel":
            wait.cancel()
        elif end == "abandon":
            assert wait.abandon() == (count == 0)
        else:
            wait.force_complete()
        assert len(wait.ends) == 1
    statuses = {"expire": Status.EXPIRED, "cancel": Status.CANCELLED, "abandon": Status.CANCELLED}
    assert wait.ends == [statuses.get(ends[0], Status.FIRED)]
    assert wait.is_abandoned == ("abandon" in ends)
