"""An operation that notes its calls, and how to count what is watched."""

from collections.abc import Callable, Hashable

from purgatory import DelayedOperation
from purgatory.operations import DelayedOperationPurgatory
from purgatory.operations.watch_key import watch_bytes
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
    watched = [operation.keys for operation in core.operations()]
    assert statistics.bytes == sum(watch_bytes(keys) for keys in watched if len(keys) > 1)
    assert statistics.keys == len(core.keys())
    return core.delayed, core.watched, statistics.keys, len(core.timer)


def outcomes(core: DelayedOperationPurgatory) -> tuple[int, int, int, int]:
    """How many fired, expired, were cancelled, were drained."""
    statistics = core.statistics()
    return statistics.fired, statistics.expired, statistics.cancelled, statistics.drained
