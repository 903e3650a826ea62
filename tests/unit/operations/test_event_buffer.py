"""The buffer between the purgatory's thread and the one that writes."""

import gc
import weakref
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from purgatory import DelayedOperation, Status
from purgatory.operations import DelayedOperationPurgatory, OperationEvent
from purgatory.operations.event_buffer import GAP, EventBuffer
from purgatory.testing import MockClock
from purgatory.timer import SystemClock

MakeCore = Callable[..., DelayedOperationPurgatory]


class Operation(DelayedOperation):
    """Completes when it may; can be referred to weakly."""

    __slots__ = ("__weakref__", "completable")

    def __init__(self) -> None:
        super().__init__(50)
        self.completable = False

    def try_complete(self) -> bool:
        return self.force_complete() if self.completable else False

    def on_complete(self) -> None:
        pass


def watch(core: DelayedOperationPurgatory, *keys: str) -> DelayedOperation:
    """Watch with an operation that completes at the next check."""
    operation = Operation()
    assert not core.try_complete_else_watch(operation, keys)
    operation.completable = True
    return operation


def test_a_recorder_is_told_without_an_event(make_core: MakeCore, clock: MockClock) -> None:
    """The purgatory asks for `record` once, and calls that instead of the listener."""
    buffer = EventBuffer(10, clock)
    events: list[OperationEvent] = []
    core = make_core(buffer, events.append)
    operation = watch(core, "a", "b")
    clock.advance(7)
    core.check_and_complete("a")
    assert buffer.take(10) == [
        (id(operation), Operation, Status.PENDING, ("a", "b"), None, 1_050, 1_000_000_000),
        (id(operation), Operation, Status.FIRED, ("a", "b"), "a", 1_050, 1_007_000_000),
    ]
    assert [event.status for event in events] == [Status.PENDING, Status.FIRED]


def test_a_listener_may_have_something_called_record(make_core: MakeCore) -> None:
    """It is told of events all the same, since it can be called."""

    class Listening:
        def __init__(self) -> None:
            self.record: list[OperationEvent] = []

        def __call__(self, event: OperationEvent) -> None:
            self.record.append(event)

    listener = Listening()
    core = make_core(listener)
    watch(core, "a")
    core.check_and_complete("a")
    assert [event.status for event in listener.record] == [Status.PENDING, Status.FIRED]


def test_an_operation_is_not_kept_alive(make_core: MakeCore, clock: MockClock) -> None:
    """What waits in the buffer holds its class and its keys only."""
    buffer = EventBuffer(10, clock)
    core = make_core(buffer)
    operation = watch(core, "a")
    core.check_and_complete("a")
    gone = weakref.ref(operation)
    del operation
    gc.collect()
    assert (gone(), len(buffer)) == (None, 2)


@given(limit=st.integers(1, 4), steps=st.lists(st.one_of(st.none(), st.integers(0, 6))))
def test_what_there_is_no_room_for_is_counted(limit: int, steps: list[int | None]) -> None:
    """By a list: the oldest stay, in order, and one GAP is where others are missing."""
    buffer = EventBuffer(limit, MockClock())
    expected: list[tuple[int, ...]] = []
    dropped = 0
    for number, most in enumerate(steps):
        if most is not None:
            assert buffer.take(most) == expected[:most]
            del expected[:most]
        elif len(expected) < limit:
            expected.append((number,))
            buffer.put((number,))
        else:
            dropped += 1
            expected += [] if expected[-1] == GAP else [GAP]
            buffer.put((number,))
        assert (len(buffer), buffer.dropped) == (len(expected), dropped)
    assert buffer


def test_an_operation_that_there_is_no_room_for_is_counted(
    make_core: MakeCore, clock: MockClock
) -> None:
    """As what is put into the buffer is."""
    buffer = EventBuffer(3, clock)
    core = make_core(buffer)
    for _ in range(2):
        watch(core, "a")
    core.check_and_complete("a")
    assert (buffer.dropped, [event[2] for event in buffer.take(3)][2]) == (1, Status.FIRED)
    assert buffer.take(9) == [GAP]


def test_the_time_is_that_of_the_system(make_core: MakeCore) -> None:
    """In the compiled form it is read without Python: it is the same clock."""
    clock = SystemClock()
    buffer = EventBuffer(10, clock)
    core = make_core(buffer)
    before_ns = clock.now_ns()
    watch(core, "a")
    core.check_and_complete("a")
    after_ns = clock.now_ns()
    first_ns, last_ns = (event[6] for event in buffer.take(2))
    assert before_ns <= first_ns <= last_ns <= after_ns
