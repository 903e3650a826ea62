"""Cases 21-29 of Kafka's DelayedOperationPurgatory, and what is ours: exact counts, re-entrancy."""

import logging
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any

import pytest

from purgatory import (
    MAX_DELAY_MS,
    DelayedOperation,
    DelayedOperationPurgatory,
    OperationEvent,
    PurgatoryClosedError,
    Status,
)
from purgatory.operations.delayed_operation_purgatory import UNTRIED
from purgatory.testing import MockClock

MakeCore = Callable[..., DelayedOperationPurgatory]


class Operation(DelayedOperation):
    """Completes once it is `completable`; notes its calls, and does `then` when called back."""

    def __init__(self, delay_ms: int = 1_000, *, name: str = "", completable: bool = False) -> None:
        super().__init__(delay_ms)
        self.name = name
        self.completable = completable
        self.tries = 0
        self.calls: list[str] = []
        self.on_try: Callable[[], object] = lambda: None
        self.then: Callable[[], object] = lambda: None

    def __repr__(self) -> str:
        return f"<operation {self.name}>"

    def try_complete(self) -> bool:
        self.tries += 1
        self.on_try()
        return self.completable and self.force_complete()

    def on_complete(self) -> None:
        self.called("complete")

    def on_expiration(self) -> None:
        self.calls.append("expiration")

    def on_cancellation(self) -> None:
        self.called("cancellation")

    def called(self, call: str) -> None:
        self.calls.append(call)
        assert self.is_completed and not self.is_pending and self.keys == ()
        self.then()


def watch(
    core: DelayedOperationPurgatory, *keys: Hashable, name: str = "", delay_ms: int = 1_000
) -> Operation:
    """An operation that watches `keys`."""
    operation = Operation(delay_ms, name=name)
    assert not core.try_complete_else_watch(operation, keys)
    assert operation.keys == tuple(dict.fromkeys(keys))
    return operation


def fail() -> None:
    raise ZeroDivisionError("on purpose")


def interrupt() -> None:
    raise KeyboardInterrupt


def pass_time(core: DelayedOperationPurgatory, clock: MockClock, ms: int) -> int:
    clock.advance(ms)
    return core.timer.advance_clock()


def counts(core: DelayedOperationPurgatory) -> tuple[int, int, int, int]:
    """Operations, watches, keys, timers."""
    statistics = core.statistics()
    assert (statistics.delayed, statistics.watched) == (core.delayed, core.watched)
    assert statistics.keys == len(core.keys())
    return core.delayed, core.watched, statistics.keys, len(core.timer)


def outcomes(core: DelayedOperationPurgatory) -> tuple[int, int, int, int]:
    """How many fired, expired, were cancelled, were drained."""
    statistics = core.statistics()
    return statistics.fired, statistics.expired, statistics.cancelled, statistics.drained


@pytest.fixture
def core(make_core: MakeCore) -> DelayedOperationPurgatory:
    return make_core()


def test_request_satisfaction(core: DelayedOperationPurgatory) -> None:
    """Case 21: a check completes what can be completed on its key, once."""
    assert core.check_and_complete("test1") == 0
    first, second = watch(core, "test1"), watch(core, "test2")
    assert core.check_and_complete("test2") == 0
    first.completable = True
    assert [core.check_and_complete("test1") for _ in range(2)] == [1, 0]
    assert (first.calls, first.status, second.status) == (
        ["complete"],
        Status.FIRED,
        Status.PENDING,
    )
    second.completable = True
    assert [core.check_and_complete("test2") for _ in range(2)] == [1, 0]
    assert outcomes(core) == (2, 0, 0, 0)


def test_request_expiry(core: DelayedOperationPurgatory, clock: MockClock) -> None:
    """Case 22: the deadline completes an operation: on_complete, then on_expiration, once each."""
    short = watch(core, "test1", delay_ms=20)
    long = watch(core, "test1", delay_ms=200_000)
    assert (pass_time(core, clock, 19), short.calls) == (0, [])
    assert (pass_time(core, clock, 1), short.calls) == (1, ["complete", "expiration"])
    assert (short.status, long.status, long.calls) == (Status.EXPIRED, Status.PENDING, [])
    assert (counts(core), outcomes(core)) == ((1, 1, 1, 1), (0, 1, 0, 0))
    assert long.cancel()


def test_cancel_for_key(core: DelayedOperationPurgatory) -> None:
    """Case 23: the operations of the key are returned, told, and gone from their other keys."""
    first, second = watch(core, "test1", "other"), watch(core, "test1")
    third = watch(core, "test2")
    assert core.cancel_for_key("test1") == [first, second]
    assert first.calls == second.calls == ["cancellation"]
    assert first.status is second.status is Status.CANCELLED
    assert (counts(core), outcomes(core)) == ((1, 1, 1, 1), (0, 0, 2, 0))
    assert core.cancel_for_key("unknown") == core.cancel_for_key("other") == []
    assert (core.cancel_for_key("test2"), third.calls) == ([third], ["cancellation"])


def test_no_keys_are_refused(core: DelayedOperationPurgatory) -> None:
    """Case 24: an operation without a key could never be completed by one; it is not tried."""
    operation = Operation()
    with pytest.raises(ValueError, match="at least one key"):
        core.try_complete_else_watch(operation, [])
    assert operation.tries == 0


def test_a_key_given_several_times_counts_once(core: DelayedOperationPurgatory) -> None:
    """Case 24: Kafka makes three watches of it; a check would then try it three times."""
    operation = watch(core, "a", "a", "b", "a")
    assert (operation.keys, core.count("a"), core.watched) == (("a", "b"), 1, 2)
    core.check_and_complete("a")
    assert operation.tries == 3
    operation.cancel()


def test_completed_at_the_first_try(core: DelayedOperationPurgatory) -> None:
    """Case 25: nothing is watched and nothing is timed."""
    operation = Operation(completable=True)
    assert core.try_complete_else_watch(operation, ["a"])
    assert (operation.tries, operation.calls, counts(core)) == (1, ["complete"], (0, 0, 0, 0))


def test_completed_at_the_second_try(core: DelayedOperationPurgatory) -> None:
    """Case 25: what happens while it begins to watch is seen, and nothing is left anywhere."""
    operation = Operation()
    seen: list[tuple[Hashable, ...]] = []

    def happen() -> None:
        seen.append(operation.keys)
        operation.completable = bool(operation.keys)

    operation.on_try = happen
    assert core.try_complete_else_watch(operation, ["a", "b"])
    assert seen == [(), ("a", "b")]
    assert (operation.calls, operation.keys, counts(core)) == (["complete"], (), (0, 0, 0, 0))


def test_a_completed_operation_is_not_watched(core: DelayedOperationPurgatory) -> None:
    """What ended before it came here waits for nothing, and is not called back again."""
    operation = Operation()
    operation.force_complete()
    assert not core.try_complete_else_watch(operation, ["a"])
    assert (operation.calls, counts(core)) == (["complete"], (0, 0, 0, 0))


def test_on_complete_may_check_its_own_key(core: DelayedOperationPurgatory) -> None:
    """Case 26: a callback may come back to the key of the walk that it is part of."""
    first, second, third = (watch(core, "a", name=name) for name in "123")
    first.then = lambda: checked.append(core.check_and_complete("a"))
    checked: list[int] = []
    first.completable = third.completable = True
    assert core.check_and_complete("a") == 1
    assert (checked, third.calls, second.status) == ([1], ["complete"], Status.PENDING)
    second.cancel()


def test_a_callback_that_raises_stops_none_of_its_neighbours(
    core: DelayedOperationPurgatory, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 26: the operation stays completed, the others are tried, the error is logged."""
    first, failing, last = (watch(core, "a", "b", name=name) for name in ("1", "bad", "3"))
    failing.then = fail
    first.completable = failing.completable = last.completable = True
    assert core.check_and_complete("a") == 3
    assert failing.status is Status.FIRED
    assert [first.calls, failing.calls, last.calls] == [["complete"]] * 3
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and record.name == "purgatory.operation"
    assert "<operation bad>" in record.getMessage()
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


def test_a_try_that_raises_leaves_its_operation_waiting(
    core: DelayedOperationPurgatory, caplog: pytest.LogCaptureFixture, clock: MockClock
) -> None:
    """It is tried again the next time, and its deadline holds."""
    failing, other = watch(core, "a"), watch(core, "a")
    failing.on_try = fail
    other.completable = True
    assert core.check_and_complete("a") == 1
    assert (len(caplog.records), failing.status, core.delayed) == (1, Status.PENDING, 1)
    failing.on_try = lambda: None
    failing.completable = True
    assert core.check_and_complete("a") == 1
    assert pass_time(core, clock, 10_000) == 0


def test_callbacks_that_raise_at_the_deadline_are_each_logged(
    core: DelayedOperationPurgatory, caplog: pytest.LogCaptureFixture, clock: MockClock
) -> None:
    """on_expiration follows an on_complete that failed, and the next operation expires too."""

    class Failing(Operation):
        def on_expiration(self) -> None:
            super().on_expiration()
            fail()

    failing = Failing(20)
    failing.then = fail
    assert not core.try_complete_else_watch(failing, ["a"])
    other = watch(core, "a", delay_ms=20)
    assert pass_time(core, clock, 20) == 2
    assert failing.calls == other.calls == ["complete", "expiration"]
    assert len(caplog.records) == 2


def test_cancellations_that_raise_stop_none_of_their_neighbours(
    core: DelayedOperationPurgatory, caplog: pytest.LogCaptureFixture
) -> None:
    """All are returned, all are told, and the error is logged."""
    operations = [watch(core, "a", name=name) for name in "123"]
    operations[1].then = fail
    assert core.cancel_for_key("a") == operations
    assert [operation.calls for operation in operations] == [["cancellation"]] * 3
    assert len(caplog.records) == 1


@pytest.mark.parametrize("delay_ms", [0, -1])
def test_a_delay_of_zero(core: DelayedOperationPurgatory, clock: MockClock, delay_ms: int) -> None:
    """Case 27: it is watched at first, never expired inside the call, then expires, once."""
    operation = watch(core, "a", delay_ms=delay_ms)
    assert (operation.calls, counts(core)) == ([], (1, 1, 1, 1))
    assert pass_time(core, clock, 0) == 1
    assert (operation.calls, operation.status) == (["complete", "expiration"], Status.EXPIRED)


def test_a_completed_operation_leaves_all_its_keys_at_once(
    core: DelayedOperationPurgatory,
) -> None:
    """Case 28, where Kafka's stays on the others until a purge: watched drops by three."""
    operation = watch(core, "a", "b", "c")
    other = watch(core, "c")
    assert counts(core) == (2, 4, 3, 2)
    operation.completable = True
    assert core.check_and_complete("b") == 1
    assert (counts(core), core.keys()) == ((1, 1, 1, 1), ["c"])
    assert (core.watching("a"), core.watching("b"), core.watching("c")) == ([], [], [other])
    other.cancel()


def test_shutdown_tells_each_operation(core: DelayedOperationPurgatory) -> None:
    """Case 29: nobody waits for ever; each is drained, once, and returned once."""
    operations = {watch(core, "a", "b"), watch(core, "b"), watch(core, "c")}
    assert set(drained := core.shutdown()) == operations and len(drained) == 3
    assert all(operation.calls == ["cancellation"] for operation in operations)
    assert all(operation.status is Status.DRAINED for operation in operations)
    assert (counts(core), outcomes(core)) == ((0, 0, 0, 0), (0, 0, 0, 3))
    assert core.shutdown() == []


def test_adding_after_shutdown_is_an_error(core: DelayedOperationPurgatory) -> None:
    """Case 29: a clear error, and the operation is not even tried."""
    core.shutdown()
    operation = Operation(completable=True)
    with pytest.raises(PurgatoryClosedError, match="'test' was shut down"):
        core.try_complete_else_watch(operation, ["a"])
    assert (operation.tries, operation.status) == (0, Status.PENDING)


def test_adding_from_a_drained_operation_is_an_error(
    core: DelayedOperationPurgatory, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback of the shutdown cannot leave something behind."""
    operation = watch(core, "a")
    operation.then = lambda: watch(core, "a")
    assert core.shutdown() == [operation]
    assert "was shut down" in caplog.text
    assert counts(core) == (0, 0, 0, 0)


def test_a_shutdown_during_the_first_try_leaves_nothing_behind(
    core: DelayedOperationPurgatory,
) -> None:
    """Whoever shuts the purgatory down has seen the last of its operations."""
    operation = Operation()
    operation.on_try = lambda: core.shutdown() if operation.tries == 1 else None
    with suppress(PurgatoryClosedError):
        core.try_complete_else_watch(operation, ["a"])
    assert counts(core) == (0, 0, 0, 0)


def test_a_bare_string_is_not_a_list_of_keys(core: DelayedOperationPurgatory) -> None:
    """`"abc"` would be three keys of one letter: a TypeError says what was meant."""
    operation = Operation(completable=True)
    with pytest.raises(TypeError, match=r"give a list of keys, such as \['abc'\]"):
        core.try_complete_else_watch(operation, "abc")
    assert operation.tries == 0


@pytest.mark.parametrize("container", [list, tuple])
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
    operation = Operation()
    operation.delay_ms = MAX_DELAY_MS + 1
    with pytest.raises(ValueError, match="beyond the limit"):
        core.try_complete_else_watch(operation, ["a", "b"])
    assert (operation.keys, operation.status, counts(core)) == ((), Status.PENDING, (0, 0, 0, 0))
    operation.delay_ms = 5
    assert not core.try_complete_else_watch(operation, ["a"])
    operation.cancel()


@pytest.mark.parametrize("raiser", [fail, interrupt])
@pytest.mark.parametrize("number", [1, 2])
def test_a_try_that_raises_leaves_nothing_behind(
    core: DelayedOperationPurgatory, number: int, raiser: Callable[[], None]
) -> None:
    """Neither the first try nor the second; the caller gets the error."""
    operation, neighbour = Operation(), watch(core, "b")
    operation.on_try = lambda: raiser() if operation.tries == number else None
    with pytest.raises((ZeroDivisionError, KeyboardInterrupt)):
        core.try_complete_else_watch(operation, ["a", "b"])
    assert (operation.tries, operation.keys, operation.calls) == (number, (), [])
    assert (counts(core), core.watching("b")) == ((1, 1, 1, 1), [neighbour])
    neighbour.cancel()


def test_a_callback_that_raises_at_the_second_try_tells_the_caller(
    core: DelayedOperationPurgatory,
) -> None:
    """The operation has fired, and is nowhere any more."""
    operation = Operation()
    operation.on_try = lambda: setattr(operation, "completable", operation.tries == 2)
    operation.then = fail
    with pytest.raises(ZeroDivisionError):
        core.try_complete_else_watch(operation, ["a"])
    assert (operation.status, counts(core)) == (Status.FIRED, (0, 0, 0, 0))


def test_force_complete_is_true_for_one_caller(core: DelayedOperationPurgatory) -> None:
    """Exactly once, by hand as well: the others are told that they came late."""
    operation = watch(core, "a")
    assert [operation.force_complete() for _ in range(3)] == [True, False, False]
    operation.run()
    assert (operation.cancel(), operation.calls) == (False, ["complete"])
    assert (core.check_and_complete("a"), outcomes(core)) == (0, (1, 0, 0, 0))


@pytest.mark.parametrize("first", ["fire", "expire", "cancel", "drain"])
def test_whatever_ends_an_operation_nothing_else_ends_it_again(
    core: DelayedOperationPurgatory, clock: MockClock, first: str
) -> None:
    """One outcome, one callback, whatever comes later."""
    operation = watch(core, "a", delay_ms=20)
    operation.completable = True
    ends: dict[str, Callable[[], object]] = {
        "fire": lambda: core.check_and_complete("a"),
        "expire": lambda: pass_time(core, clock, 20),
        "cancel": lambda: core.cancel_for_key("a"),
        "drain": core.shutdown,
    }
    ends.pop(first)()
    calls, status = list(operation.calls), operation.status
    for end in ends.values():
        end()
    assert (operation.calls, operation.status) == (calls, status)
    assert (sum(outcomes(core)), operation.calls.count("complete") <= 1) == (1, True)


def test_cancel_says_whether_it_did_it(core: DelayedOperationPurgatory) -> None:
    """Once; and the timer and every key are left before it returns."""
    operation = watch(core, "a", "b")
    assert [operation.cancel(), operation.cancel()] == [True, False]
    assert (operation.calls, counts(core)) == (["cancellation"], (0, 0, 0, 0))


def test_operations_are_tried_in_order_of_arrival(core: DelayedOperationPurgatory) -> None:
    """On every key, whatever left in between."""
    order: list[str] = []
    operations = [watch(core, "a", "b", name=name) for name in "12345"]
    for operation in operations:
        operation.on_try = lambda name=operation.name: order.append(name)  # type: ignore[misc] # late binding
    operations[2].cancel()
    core.check_and_complete("a")
    core.check_and_complete("b")
    assert order == list("1245") * 2
    core.shutdown()


def test_who_comes_during_a_walk_is_not_part_of_it(core: DelayedOperationPurgatory) -> None:
    """It looked for itself when it began to watch; a walk always ends."""
    operations: list[Operation] = []

    def add_another() -> None:
        operations.append(watch(core, "a"))
        operations[-1].then = add_another
        operations[-1].completable = True

    add_another()
    assert core.check_and_complete("a") == 1
    assert (len(operations), operations[-1].tries, core.delayed) == (2, 2, 1)
    operations[-1].then = lambda: None
    core.shutdown()


def test_a_neighbour_that_is_cancelled_during_a_walk_is_passed_over(
    core: DelayedOperationPurgatory,
) -> None:
    """It ended as cancelled: it is neither tried nor counted."""
    first, victim, last = (watch(core, "a") for _ in range(3))
    first.then = victim.cancel
    first.completable = victim.completable = last.completable = True
    assert core.check_and_complete("a") == 2
    assert (victim.tries, victim.calls, last.calls) == (2, ["cancellation"], ["complete"])
    assert outcomes(core) == (2, 0, 1, 0)


def test_a_neighbour_that_is_cancelled_during_a_cancellation_is_told_once(
    core: DelayedOperationPurgatory,
) -> None:
    """By whoever was first."""
    first, victim, last = (watch(core, "a") for _ in range(3))
    first.then = victim.cancel
    assert core.cancel_for_key("a") == [first, last]
    assert (victim.calls, outcomes(core)) == (["cancellation"], (0, 0, 3, 0))


def test_a_completion_may_fire_other_keys(core: DelayedOperationPurgatory) -> None:
    """A chain through four keys completes in one check, and ends where it began."""
    chain = {key: watch(core, key, "all") for key in "abcd"}
    for key, following in zip("abcd", "bcda", strict=True):
        chain[key].completable = True
        chain[key].then = lambda to=following: core.check_and_complete(to)  # type: ignore[misc] # late binding
    assert core.check_and_complete("a") == 1
    assert all(operation.calls == ["complete"] for operation in chain.values())
    assert (counts(core), outcomes(core)) == ((0, 0, 0, 0), (4, 0, 0, 0))


def test_an_expiration_may_cancel_and_watch(
    core: DelayedOperationPurgatory, clock: MockClock
) -> None:
    """A callback of the timer may edit what the timer is about to run."""
    first, victim = (watch(core, "a", delay_ms=20) for _ in range(2))
    later: list[Operation] = []

    def callback() -> None:
        victim.cancel()
        later.append(watch(core, "a", delay_ms=0))

    first.then = callback
    assert pass_time(core, clock, 20) == 1
    assert (victim.calls, later[0].calls) == (["cancellation"], [])
    assert (pass_time(core, clock, 0), later[0].calls) == (1, ["complete", "expiration"])


def test_a_try_may_end_its_operation_in_another_way(core: DelayedOperationPurgatory) -> None:
    """Cancelled in the middle of its second try: not completed, not watched, nothing left."""
    operation = Operation()
    operation.on_try = lambda: operation.cancel() if operation.tries == 2 else None
    assert not core.try_complete_else_watch(operation, ["a"])
    assert (operation.calls, counts(core)) == (["cancellation"], (0, 0, 0, 0))


def test_a_check_of_few_leaves_many_untried(core: DelayedOperationPurgatory) -> None:
    operations = [watch(core, "a", name=str(number)) for number in range(3)]
    assert core.check_few("b", 0) == 0
    assert core.check_few("a", 2) == UNTRIED
    assert [operation.tries for operation in operations] == [2, 2, 2]
    for operation in operations:
        operation.completable = True
    assert core.check_few("a", 3) == 3
    assert core.watched == 0


def test_a_walk_in_steps_does_what_a_check_does(core: DelayedOperationPurgatory) -> None:
    """A few at a time, in order; who ended in between is passed over, who came is left alone."""
    operations = [watch(core, "a", name=str(number)) for number in range(5)]
    for operation in operations:
        operation.completable = True
    walk = core.check_in_steps("a")
    assert (len(walk), walk.count) == (5, 0)
    assert walk.step(2) and walk.count == 2
    operations[2].cancel()
    newcomer = watch(core, "a")
    assert walk.step(2) and walk.count == 3
    assert not walk.step(2) and walk.count == 4
    assert (core.watching("a"), newcomer.tries) == ([newcomer], 2)
    assert not walk.step(2) and walk.count == 4
    newcomer.cancel()


def test_a_cancellation_in_steps(core: DelayedOperationPurgatory) -> None:
    """The same for `cancel_for_key`."""
    operations = [watch(core, "a", "b") for _ in range(3)]
    walk = core.cancel_in_steps("b")
    assert walk.step(2) and core.delayed == 1
    assert not walk.step(2) and walk.count == 3
    assert all(operation.status is Status.CANCELLED for operation in operations)


def test_a_shutdown_in_steps_takes_no_more_from_the_start(
    core: DelayedOperationPurgatory,
) -> None:
    """It is closed before the first step, and completions in between keep their outcome."""
    first, second, third = (watch(core, key) for key in "abc")
    walk = core.shutdown_in_steps()
    with pytest.raises(PurgatoryClosedError):
        core.try_complete_else_watch(Operation(), ["a"])
    assert walk.step(1)
    pending = [o for o in (first, second, third) if not o.is_completed]
    pending[0].force_complete()
    assert not walk.step(2)
    assert (walk.count, outcomes(core)) == (2, (1, 0, 0, 2))


def test_a_walk_of_nobody(core: DelayedOperationPurgatory) -> None:
    """It ends at once."""
    walk = core.check_in_steps("unknown")
    assert (len(walk), walk.step(1), walk.count) == (0, False, 0)


def test_a_key_holds_nothing_once_its_last_operation_has_left(
    core: DelayedOperationPurgatory,
) -> None:
    """Whether one or many have watched it, and in whatever order they leave."""
    for leaving in ([0], [0, 1], [1, 0], [1, 2, 0]):
        operations = [watch(core, "a", "b") for _ in leaving]
        for index in leaving:
            assert core.keys() == ["a", "b"]
            operations[index].cancel()
        assert (core.keys(), core.count("a"), core.watching("a")) == ([], 0, [])


def test_a_timer_may_be_shared(core: DelayedOperationPurgatory, clock: MockClock) -> None:
    """Two purgatories on one timer count their own."""
    other = DelayedOperationPurgatory("other", core.timer)
    mine, yours = watch(core, "a", delay_ms=20), watch(other, "a", delay_ms=20)
    assert other.check_and_complete("a") == 0
    assert (pass_time(core, clock, 20), mine.calls) == (2, yours.calls)
    assert (outcomes(core), outcomes(other)) == ((0, 1, 0, 0), (0, 1, 0, 0))


def test_an_operation_has_to_define_its_two_methods() -> None:
    """A subclass without them says so by name."""
    operation = DelayedOperation(1)
    with pytest.raises(NotImplementedError, match=r"does not define try_complete\(\)"):
        operation.try_complete()
    with pytest.raises(NotImplementedError, match=r"does not define on_complete\(\)"):
        operation.on_complete()


def test_an_operation_without_the_other_callbacks_expires_and_is_cancelled(
    core: DelayedOperationPurgatory, clock: MockClock
) -> None:
    """`on_expiration` and `on_cancellation` may be left out."""

    class Small(DelayedOperation):
        def try_complete(self) -> bool:
            return False

        def on_complete(self) -> None:
            pass

    expiring, cancelled = Small(5), Small(5)
    for operation in (expiring, cancelled):
        assert not core.try_complete_else_watch(operation, ["a"])
    assert cancelled.cancel() and pass_time(core, clock, 5) == 1
    assert (expiring.status, cancelled.status) == (Status.EXPIRED, Status.CANCELLED)


# Listeners


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


def test_listeners_are_told_of_cancellations_and_drains(make_core: MakeCore) -> None:
    """Where no key did it, the event names none."""
    events: list[OperationEvent] = []
    core = make_core(events.append)
    watch(core, "a")
    watch(core, "b")
    by_hand = watch(core, "c")
    core.cancel_for_key("a")
    by_hand.force_complete()
    core.shutdown()
    assert [(event.status, event.key) for event in events[3:]] == [
        (Status.CANCELLED, None),
        (Status.FIRED, None),
        (Status.DRAINED, None),
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


def test_an_event_names_no_key_for_what_a_neighbours_callback_completed(
    make_core: MakeCore,
) -> None:
    """`key` is the key whose check completed the operation: one of its own, or None."""
    events: list[OperationEvent] = []
    core = make_core(events.append)
    first, other = watch(core, "a"), watch(core, "z")
    first.completable = True
    first.then = other.force_complete
    core.check_and_complete("a")
    assert [(event.operation, event.key) for event in events[2:]] == [(first, "a"), (other, None)]


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
    assert core.checked_key is None


def test_an_operation_that_never_waited_is_no_event(make_core: MakeCore) -> None:
    """Completed at the first try: not watched, not counted, not told."""
    events: list[OperationEvent] = []
    core = make_core(events.append)
    assert core.try_complete_else_watch(Operation(completable=True), ["a"])
    assert (events, outcomes(core)) == ([], (0, 0, 0, 0))


def test_no_operation_ends_for_a_listener_that_did_not_begin(make_core: MakeCore) -> None:
    """Completed at the second try: told of both steps or of neither, and never of deadline -1."""
    events: list[OperationEvent] = []
    core = make_core(events.append)
    operation = Operation()
    operation.on_try = lambda: setattr(operation, "completable", operation.tries == 2)
    assert core.try_complete_else_watch(operation, ["a"])
    assert [event.status for event in events] in ([], [Status.PENDING, Status.FIRED])
    assert all(event.deadline_ms > 0 for event in events)


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


def test_a_listener_may_end_the_operation_it_is_told_of(make_core: MakeCore) -> None:
    """Re-entrancy from a listener leaves the counts exact."""

    def refuse(event: OperationEvent) -> None:
        if event.status is Status.PENDING:
            event.operation.cancel()

    core = make_core(refuse)
    operation = Operation()
    assert not core.try_complete_else_watch(operation, ["a"])
    assert (operation.calls, counts(core)) == (["cancellation"], (0, 0, 0, 0))
