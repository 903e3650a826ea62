"""Cases 21-29 of Kafka's DelayedOperationPurgatory."""

import logging
from collections.abc import Hashable, Sequence
from contextlib import suppress

import pytest

from purgatory import PurgatoryClosedError, Status
from purgatory.operations import DelayedOperationPurgatory
from purgatory.testing import MockClock
from purgatory.timer import MAX_DELAY_MS
from tests.cases import cases
from tests.unit.operations.noted_operation import (
    Operation,
    counts,
    fail,
    outcomes,
    pass_time,
    watch,
)


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


@cases("keys", [[], ()])
def test_no_keys_are_refused(core: DelayedOperationPurgatory, keys: Sequence[str]) -> None:
    """Case 24: an operation without a key could never be completed by one; it is not tried."""
    operation = Operation()
    with pytest.raises(ValueError, match="at least one key"):
        core.try_complete_else_watch(operation, keys)
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


def test_a_delay_has_a_maximum() -> None:
    """That of the timer, and no less."""
    assert Operation(MAX_DELAY_MS).delay_ms == MAX_DELAY_MS
    with pytest.raises(ValueError, match="beyond the limit"):
        Operation(MAX_DELAY_MS + 1)


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
