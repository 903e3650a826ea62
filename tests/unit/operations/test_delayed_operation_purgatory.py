"""What Kafka's DelayedOperationPurgatory promises, and the laws of tests/properties do not."""

import logging
from collections.abc import Sequence

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
    pass_time,
    watch,
)


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
