"""Keys and delays that `try_complete_else_watch` refuses, and first tries that raise."""

from collections.abc import Callable, Hashable
from typing import Any

import pytest

from purgatory import Status
from purgatory.operations import DelayedOperationPurgatory
from purgatory.timer import MAX_DELAY_MS
from tests.cases import cases
from tests.unit.operations.noted_operation import (
    MakeCore,
    Operation,
    counts,
    watch,
)


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
    operation = Operation()
    operation.delay_ms = MAX_DELAY_MS + 1
    with pytest.raises(ValueError, match="beyond the limit"):
        core.try_complete_else_watch(operation, ["a", "b"])
    assert (operation.keys, operation.status, counts(core)) == ((), Status.PENDING, (0, 0, 0, 0))
    operation.delay_ms = 5
    assert not core.try_complete_else_watch(operation, ["a"])
    operation.cancel()
