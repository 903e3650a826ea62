"""Checks, cancellations and shutdowns in steps."""

import pytest

from purgatory import DelayedOperation, PurgatoryClosedError, Status
from purgatory.operations import DelayedOperationPurgatory
from purgatory.operations.delayed_operation_purgatory import UNTRIED
from purgatory.operations.resumable_batch import ResumableBatch
from purgatory.timer import TimerTask
from tests.unit.operations.noted_operation import Operation, interrupt, outcomes, watch


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


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
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
    batch = ResumableBatch(operations, act)
    with pytest.raises(error, match="first"):
        batch.take()
    assert (seen, interrupts, batch.count) == (operations, [], 3)
    assert batch.take() == 3 and seen == operations


def test_an_interrupt_in_a_check_of_one_key(core: DelayedOperationPurgatory) -> None:
    """Whoever waits behind it is tried, and the caller gets the interrupt."""
    first, second, third = (watch(core, "a", name=name) for name in "abc")
    for operation in (first, second, third):
        operation.completable = True
    second.then = interrupt
    with pytest.raises(KeyboardInterrupt):
        core.check_and_complete("a")
    assert all(operation.is_completed for operation in (first, second, third))
    assert core.watched == 0
