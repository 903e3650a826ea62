"""How an operation ends: exactly once, and what its callbacks may do."""

from collections.abc import Callable

import pytest

from purgatory import DelayedOperation, Status
from purgatory.operations import DelayedOperationPurgatory
from purgatory.testing import MockClock
from tests.unit.operations.noted_operation import Operation, counts, outcomes, pass_time, watch


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
