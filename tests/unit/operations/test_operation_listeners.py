"""What listeners hear of operations."""

import pytest

from purgatory import Status
from purgatory.operations import OperationEvent
from purgatory.testing import MockClock
from tests.unit.operations.noted_operation import (
    MakeCore,
    Operation,
    counts,
    fail,
    interrupt,
    pass_time,
    watch,
)


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
