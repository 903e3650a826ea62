"""How an operation ends: exactly once, and what its callbacks may do."""

import pytest

from purgatory import DelayedOperation, Status
from purgatory.operations import DelayedOperationPurgatory
from purgatory.testing import MockClock
from tests.unit.operations.noted_operation import outcomes, pass_time, watch


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
