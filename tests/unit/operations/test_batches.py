"""Checks, cancellations and shutdowns in steps."""

import pytest

from purgatory import DelayedOperation, PurgatoryClosedError
from purgatory.operations import DelayedOperationPurgatory
from purgatory.operations.delayed_operation_purgatory import UNTRIED
from purgatory.operations.resumable_batch import ResumableBatch
from purgatory.timer import TimerTask
from tests.cases import cases
from tests.unit.operations.noted_operation import Operation, interrupt, outcomes, watch


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
    batch = ResumableBatch(operations, act)
    with pytest.raises(error, match="first"):
        batch.finish()
    assert (seen, interrupts, batch.count) == (operations, [], 3)
    assert batch.finish() == 3 and seen == operations


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
