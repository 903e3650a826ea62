"""What WaitTimes keeps of the classes of operations; the times are in the laws."""

from __future__ import annotations

import gc
import weakref

from purgatory import DelayedOperation, Status
from purgatory.operations.wait_histograms import Histogram, WaitTimes
from purgatory.testing import MockClock

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
