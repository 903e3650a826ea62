"""What Kafka's DelayedOperationPurgatory promises, and the laws of tests/properties do not."""

from __future__ import annotations

import gc
import logging
import weakref
from collections import UserString
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import DelayedOperation, InvalidKeyError, PurgatoryClosedError, Status
from purgatory.operations import DelayedOperationPurgatory, OperationEvent
from purgatory.operations.delayed_operation import UNTRIED
from purgatory.operations.event_buffer import GAP, EventBuffer
from purgatory.operations.resumable_batch import ResumableBatch
from purgatory.operations.wait_histograms import Histogram, WaitTimes
from purgatory.operations.watch_key import WATCH_BYTES, check_key, watch_bytes
from purgatory.testing import MockClock
from purgatory.timer import MAX_DELAY_MS, SystemClock, TimerTask
from tests.cases import cases
from tests.garbage import without_collector
from tests.unit.operations.noted_operation import (
    MakeCore,
    Operation,
    counts,
    fail,
    interrupt,
    outcomes,
    pass_time,
    watch,
)


@pytest.fixture
def core(make_core: MakeCore) -> DelayedOperationPurgatory:
    return make_core()


@cases("keys", [[], ()])
def test_no_keys_are_refused(core: DelayedOperationPurgatory, keys: Sequence[str]) -> None:
    """Case 24: an operation without a key could never be completed by one; it is not tried."""
    operation = Operation()
    with pytest.raises(ValueError, match="at least one key"):
        core.try_complete_else_watch(operation, keys)
    assert operation.tries == 0


def test_a_completed_operation_is_not_watched(core: DelayedOperationPurgatory) -> None:
    """What ended before it came here waits for nothing, and is not called back again."""
    operation = Operation()
    operation.force_complete()
    assert not core.try_complete_else_watch(operation, ["a"])
    assert (operation.calls, counts(core)) == (["complete"], (0, 0, 0, 0))


def test_callbacks_that_raise_at_the_deadline_are_each_logged(
    core: DelayedOperationPurgatory, caplog: pytest.LogCaptureFixture, clock: MockClock
) -> None:
    """on_expiration follows an on_complete that failed, and the next operation expires too."""

    class Failing(Operation):
        def on_expiration(self) -> None:
            super().on_expiration()
            fail()

    failing = Failing(20, name="bad")
    failing.then = fail
    assert not core.try_complete_else_watch(failing, ["a"])
    other = watch(core, "a", delay_ms=20)
    assert pass_time(core, clock, 20) == 2
    assert failing.calls == other.calls == ["complete", "expiration"]
    assert len(caplog.records) == 2
    record = caplog.records[0]
    assert record.levelno == logging.ERROR and record.name == "purgatory.operation"
    assert "<operation bad>" in record.getMessage()
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


def test_adding_after_shutdown_is_an_error(core: DelayedOperationPurgatory) -> None:
    """Case 29: a clear error, and the operation is not even tried."""
    core.shutdown()
    operation = Operation(completable=True)
    with pytest.raises(PurgatoryClosedError, match="'test' was shut down"):
        core.try_complete_else_watch(operation, ["a"])
    assert (operation.tries, operation.status) == (0, Status.PENDING)


def test_a_bare_string_is_not_a_list_of_keys(core: DelayedOperationPurgatory) -> None:
    """`"abc"` would be three keys of one letter: a TypeError says what was meant."""
    operation = Operation(completable=True)
    with pytest.raises(TypeError, match=r"give a list of keys, such as \['abc'\]"):
        core.try_complete_else_watch(operation, "abc")
    assert operation.tries == 0


@cases("container", [list, tuple])
def test_a_key_that_cannot_be_hashed_is_refused(
    core: DelayedOperationPurgatory, container: Callable[[list[Any]], Any]
) -> None:
    """With nothing left on the keys before it, and the operation as good as new."""
    operation = Operation()
    with pytest.raises(TypeError, match="unhashable"):
        core.try_complete_else_watch(operation, container(["a", []]))
    assert (operation.keys, core.keys(), counts(core)) == ((), [], (0, 0, 0, 0))
    assert not core.try_complete_else_watch(operation, ["a"])
    operation.cancel()


def test_keys_may_be_any_hashable_and_come_from_an_iterator(
    core: DelayedOperationPurgatory,
) -> None:
    """As in Kafka, where keys are small value objects."""
    keys: list[Hashable] = [("topic", 0), 7, "a", None]
    operation = Operation()
    assert not core.try_complete_else_watch(operation, iter(keys))
    operation.completable = True
    assert (core.keys(), core.check_and_complete(("topic", 0))) == (keys, 1)


def test_an_operation_is_watched_once(make_core: MakeCore) -> None:
    """Watching it a second time is refused, here and elsewhere, and changes nothing."""
    core, other = make_core(), make_core()
    operation = watch(core, "a")
    for purgatory in (core, other):
        with pytest.raises(ValueError, match="watched already"):
            purgatory.try_complete_else_watch(operation, ["b"])
    assert (operation.tries, operation.keys, counts(core)) == (2, ("a",), (1, 1, 1, 1))
    operation.cancel()


def test_a_delay_beyond_the_limit_leaves_nothing_behind(core: DelayedOperationPurgatory) -> None:
    """The timer refuses it, so it is off its keys again and can be watched once more."""
    with pytest.raises(ValueError, match="beyond the limit"):
        Operation(MAX_DELAY_MS + 1)
    operation = Operation()
    operation.delay_ms = MAX_DELAY_MS + 1
    with pytest.raises(ValueError, match="beyond the limit"):
        core.try_complete_else_watch(operation, ["a", "b"])
    assert (operation.keys, operation.status, counts(core)) == ((), Status.PENDING, (0, 0, 0, 0))
    operation.delay_ms = 5
    assert not core.try_complete_else_watch(operation, ["a"])
    operation.cancel()


def test_a_check_of_few_leaves_many_untried(core: DelayedOperationPurgatory) -> None:
    operations = [watch(core, "a", name=str(number)) for number in range(3)]
    assert core.check_up_to("b", 0) == 0
    assert core.check_up_to("a", 2) == UNTRIED
    assert [operation.tries for operation in operations] == [2, 2, 2]
    for operation in operations:
        operation.completable = True
    assert core.check_up_to("a", 3) == 3
    assert core.watched == 0


def test_a_shutdown_batch_takes_no_more_from_the_start(
    core: DelayedOperationPurgatory,
) -> None:
    """It is closed before the first step, and completions in between keep their outcome."""
    first, second, third = (watch(core, key) for key in "abc")
    batch = core.shutdown_batch()
    with pytest.raises(PurgatoryClosedError):
        core.try_complete_else_watch(Operation(), ["a"])
    assert batch.advance(1)
    pending = [o for o in (first, second, third) if not o.is_completed]
    pending[0].force_complete()
    assert not batch.advance(2)
    assert (batch.count, outcomes(core)) == (2, (1, 0, 0, 2))


@cases("error", [KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_while_all_are_taken(error: type[BaseException]) -> None:
    """The others are dealt with all the same, each once; then the first interrupt is raised."""
    seen: list[TimerTask] = []
    interrupts = [error("first"), error("second")]

    def act(operation: DelayedOperation) -> bool:
        seen.append(operation)
        if operation in operations[1:4:2]:
            raise interrupts.pop(0)
        return True

    operations = [Operation() for _ in range(5)]
    batch = ResumableBatch([*operations], act)
    with pytest.raises(error, match="first"):
        batch.finish()
    assert (seen, interrupts, batch.count) == (operations, [], 3)
    assert batch.finish() == 3 and seen == operations


def test_a_batch_releases_what_it_has_processed() -> None:
    """One by one: to free all at the end would take one turn of the loop."""
    batch = ResumableBatch([Operation() for _ in range(5)], Operation.cancel)
    found = [weakref.ref(operation) for operation in batch._operations]
    with without_collector():
        for processed in range(1, 6):
            assert batch.advance(1) == (processed < 5)
            assert [each() is None for each in found] == [n < processed for n in range(5)]
    assert (batch.count, len(batch)) == (5, 5)


def test_an_operation_has_to_define_its_two_methods() -> None:
    """A subclass without them says so by name."""
    operation = DelayedOperation(1)
    with pytest.raises(NotImplementedError, match=r"does not define try_complete\(\)"):
        operation.try_complete()
    with pytest.raises(NotImplementedError, match=r"does not define on_complete\(\)"):
        operation.on_complete()


def test_listeners_are_told_of_every_step(make_core: MakeCore, clock: MockClock) -> None:
    """Watched and ended, with keys, the key that did it, the time and the deadline."""
    events: list[OperationEvent] = []
    core = make_core(events.append)
    fired, expired = watch(core, "a", "b", delay_ms=50), watch(core, "c", delay_ms=20)
    fired.completable = True
    clock.advance(7)
    core.check_and_complete("b")
    pass_time(core, clock, 13)
    watched, ended = Status.PENDING, Status.FIRED
    assert events == [
        OperationEvent(fired, watched, ("a", "b"), None, 1_000, 1_050),
        OperationEvent(expired, watched, ("c",), None, 1_000, 1_020),
        OperationEvent(fired, ended, ("a", "b"), "b", 1_007, 1_050),
        OperationEvent(expired, Status.EXPIRED, ("c",), None, 1_020, 1_020),
    ]


def test_listeners_are_told_before_the_callback_and_after_all_keys_are_left(
    make_core: MakeCore,
) -> None:
    """A listener sees the purgatory as the callback will see it."""
    seen: list[object] = []

    def listen(event: OperationEvent) -> None:
        seen.append((event.status, purgatory.delayed, event.operation.is_pending))

    purgatory = make_core(listen)
    operation = watch(purgatory, "a")
    operation.then = lambda: seen.append("callback")
    operation.force_complete()
    assert seen == [(Status.PENDING, 1, True), (Status.FIRED, 0, False), "callback"]


def test_a_nested_check_is_named_by_its_own_key(make_core: MakeCore) -> None:
    """And the outer one by its own again, once the nested one is over."""
    events: list[OperationEvent] = []
    core = make_core(events.append)
    first, nested, last = watch(core, "a"), watch(core, "b"), watch(core, "a")
    first.completable = nested.completable = last.completable = True
    first.then = lambda: core.check_and_complete("b")
    core.check_and_complete("a")
    ended = {event.operation: event.key for event in events[3:]}
    assert ended == {first: "a", nested: "b", last: "a"}
    assert core.current_key is None


def test_a_listener_that_raises_is_logged_and_changes_nothing(
    make_core: MakeCore, caplog: pytest.LogCaptureFixture
) -> None:
    """The next listener is told, and the operation goes its way."""
    events: list[OperationEvent] = []

    def failing(event: OperationEvent) -> None:
        fail()

    core = make_core(failing, events.append)
    operation = watch(core, "a")
    operation.completable = True
    assert core.check_and_complete("a") == 1
    assert ([event.status for event in events], operation.calls) == (
        [Status.PENDING, Status.FIRED],
        ["complete"],
    )
    assert [record.name for record in caplog.records] == ["purgatory.watching"] * 2


def test_a_listener_that_is_interrupted_leaves_nothing_behind(make_core: MakeCore) -> None:
    """The caller gets the interrupt, and the operation is neither on a key nor in the timer."""

    def interrupted(event: OperationEvent) -> None:
        interrupt()

    core = make_core(interrupted)
    operation = Operation()
    with pytest.raises(KeyboardInterrupt):
        core.try_complete_else_watch(operation, ["a"])
    assert (counts(core), operation.is_pending) == ((0, 0, 0, 0), False)


MAX_CLASSES = 1_000


class CountedKind(type):
    """A class whose kind counts how often it is read."""

    asked = 0

    @property
    def kind(cls) -> str:
        cls.asked += 1
        return "counted"


def record(times: WaitTimes, operation: DelayedOperation) -> None:
    times.record(operation, Status.FIRED, ("key",), "key", 2_000)


def new_class() -> type[DelayedOperation]:
    return type("Made", (DelayedOperation,), {"try_complete": lambda operation: False})


def test_the_kind_of_a_class_is_found_once() -> None:
    """Its times are then found by the class."""

    class Counted(DelayedOperation, metaclass=CountedKind):
        def try_complete(self) -> bool:
            return False

    times = WaitTimes(MockClock(1_500))
    for _ in range(3):
        record(times, Counted(1_000))
    assert (Counted.asked, times.kinds["counted"].fired.total) == (1, 3 * 500)


def test_classes_made_on_the_fly_are_not_kept_without_bound() -> None:
    """Their operations are counted all the same, under the name that they share."""
    times = WaitTimes(MockClock(1_500))
    made = []
    for _ in range(MAX_CLASSES + 2):
        cls = new_class()
        record(times, cls(1_000))
        made.append(weakref.ref(cls))
        del cls
    gc.collect()
    assert sum(cls() is not None for cls in made) == MAX_CLASSES
    assert sum(times.kinds["Made"].fired.counts) == MAX_CLASSES + 2


def test_a_value_below_zero_counts_as_zero() -> None:
    """A clock may step back."""
    histogram = Histogram((0, 10))
    histogram.add(-5)
    assert (histogram.counts, histogram.total) == ([1, 0, 0], 0)


class Liar(str):
    """Says of itself that it is fine."""

    __slots__ = ()

    def isprintable(self) -> bool:
        return True

    def __len__(self) -> int:
        return 3

    def __str__(self) -> str:
        return "fine"


@cases("text", ["", "\n", "a\x9f", "\ud800", "a" * 257])
def test_of_a_string_of_another_class_counts_what_it_holds(text: str) -> None:
    """Whatever its methods say."""
    with pytest.raises(InvalidKeyError):
        check_key(Liar(text))
    check_key(Liar("a"))


@cases("key", [UserString("a"), UserString("\n"), b"a", None, 1])
def test_what_is_no_string_is_no_key(key: Any) -> None:
    """Though it may look like one."""
    with pytest.raises(TypeError, match="not a string: give one such as"):
        check_key(key)


@cases("keys", [["a", "b"], ("a",), {"a"}, ["a"] * 1_000])
def test_several_keys_in_place_of_one(keys: Any) -> None:
    """The error shows the beginning of them, and how to give several."""
    with pytest.raises(TypeError, match=r"not a string: give each key .* park\(\*keys") as caught:
        check_key(keys)
    assert len(str(caught.value)) < 200


@cases("key", ["\u200d" * 256, "a \u200d", "\xa0", "\ud7ff\ue000"])
def test_what_is_not_printable_may_be_a_key(key: str) -> None:
    """Up to the same length, and with spaces."""
    check_key(key)


@cases("key", ["", "\u200d" * 257, "\x1f", "\x7f", "\x9f", "\ud800", chr(0xDFFF)])
def test_the_first_and_last_characters_that_no_key_has(key: str) -> None:
    """Controls, and halves of pairs."""
    with pytest.raises(InvalidKeyError):
        check_key(key)


def test_what_keys_take() -> None:
    """Four bytes for each character of one that is not of ASCII alone, and what a watch takes."""
    assert watch_bytes(()) == 0
    assert watch_bytes(("abc", "ab\xe9", 5)) == 3 * WATCH_BYTES + 3 + 4 * 3


def test_the_error_shows_the_beginning_of_a_key() -> None:
    """64 characters of one that holds what is not allowed, 32 of one that is too long."""
    for key, shown in (("a" * 100 + "\x00", 64), ("a" * 257, 32)):
        with pytest.raises(InvalidKeyError) as raised:
            check_key(key)
        assert f"'{'a' * shown}'" in str(raised.value)


def test_a_recorder_is_told_without_an_event(make_core: MakeCore, clock: MockClock) -> None:
    """The purgatory asks for `record` once, and calls that instead of the listener."""
    buffer = EventBuffer(10, clock)
    events: list[OperationEvent] = []
    core = make_core(buffer, events.append)
    operation = watch(core, "a", "b", delay_ms=50)
    operation.completable = True
    clock.advance(7)
    core.check_and_complete("a")
    assert buffer.take(10) == [
        (id(operation), Operation, Status.PENDING, ("a", "b"), None, 1_050, 1_000_000_000),
        (id(operation), Operation, Status.FIRED, ("a", "b"), "a", 1_050, 1_007_000_000),
    ]
    assert [event.status for event in events] == [Status.PENDING, Status.FIRED]


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
        watch(core, "a").completable = True
    core.check_and_complete("a")
    assert (buffer.dropped, [event[2] for event in buffer.take(3)][2]) == (1, Status.FIRED)
    assert buffer.take(9) == [GAP]


def test_the_time_is_that_of_the_system(make_core: MakeCore) -> None:
    """In the compiled form it is read without Python: it is the same clock."""
    clock = SystemClock()
    buffer = EventBuffer(10, clock)
    core = make_core(buffer)
    before_ns = clock.now_ns()
    watch(core, "a").completable = True
    core.check_and_complete("a")
    after_ns = clock.now_ns()
    first_ns, last_ns = (event[6] for event in buffer.take(2))
    assert before_ns <= first_ns <= last_ns <= after_ns


def test_a_recorder_that_is_removed_hears_no_more(make_core: MakeCore, clock: MockClock) -> None:
    """Another one goes on."""
    first, second = EventBuffer(9, clock), EventBuffer(9, clock)
    core = make_core(first, second)
    operation = watch(core, "a")
    core.remove_listener(first)
    operation.cancel()
    assert (len(first), len(second)) == (1, 2)
