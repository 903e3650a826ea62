"""Advice on the timeout of a kind of operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from purgatory.pipeline.console.formatting import counted, duration, percent
from purgatory.pipeline.statistics.binomial import wilson_interval
from purgatory.pipeline.statistics.survival import Step, survival_at

LEAST_FIRED = 30
"""With fewer fires there is no advice: the tail would rest on a handful of operations."""
LEAST_AT_RISK = 20
"""Operations that must still wait at the advised timeout, for the same reason."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Counts of the operations of one kind."""

    kind: str
    operations: int
    fired: int
    expired: int
    lost: int
    timeout_us: int
    """The median of their timeouts."""


@dataclass(frozen=True, slots=True)
class TimeoutAdvice:
    """The advised timeout of one kind, or the reason why there is none."""

    kind: str
    operations: int
    fired: int
    lost: int
    timeout_us: int
    expired_share: float
    expired_share_low: float
    expired_share_high: float
    chosen_share: float
    advised_us: int | None
    low_us: int | None
    high_us: int | None
    """The 95 % confidence interval; None is beyond the observed waits."""
    is_thin: bool
    reason: str


def advise_timeout(ended: Ended, steps: Sequence[Step], chosen_share: float) -> TimeoutAdvice:
    """Return the least timeout at which at most `chosen_share` of the operations would expire.

    `steps` is their Kaplan-Meier estimate. If it does not fall to the share before the longest
    observed wait, no timeout is advised, since nothing is known of longer waits.
    """
    advised = next((step for step in steps if step.survival <= chosen_share), None)
    # The lower band falls first: the earliest that the true timeout may be.
    low_us = _first(step.time_us for step in steps if step.low <= chosen_share)
    high_us = _first(step.time_us for step in steps if step.high <= chosen_share)
    is_thin, reason = _judged(ended, steps, advised, chosen_share)
    share_low, share_high = wilson_interval(ended.expired, ended.operations)
    return TimeoutAdvice(
        kind=ended.kind,
        operations=ended.operations,
        fired=ended.fired,
        lost=ended.lost,
        timeout_us=ended.timeout_us,
        expired_share=ended.expired / ended.operations,
        expired_share_low=share_low,
        expired_share_high=share_high,
        chosen_share=chosen_share,
        advised_us=None if is_thin or advised is None else advised.time_us,
        low_us=None if is_thin or advised is None else low_us,
        high_us=None if is_thin or advised is None else high_us,
        is_thin=is_thin,
        reason=reason,
    )


def _judged(
    ended: Ended, steps: Sequence[Step], advised: Step | None, share: float
) -> tuple[bool, str]:
    if ended.fired < LEAST_FIRED:
        return True, (
            f"Too little data: {counted(ended.fired, 'operation')} fired, and at least "
            f"{LEAST_FIRED} are needed. Collect more."
        )
    if advised is None:
        last = steps[-1]
        return False, (
            f"No observed wait is long enough: after {duration(last.time_us)} "
            f"{percent(last.survival)} would still be waiting, more than {percent(share)}. "
            "Timeouts cut longer waits off; give some operations a longer one, and run this again."
        )
    if advised.at_risk < LEAST_AT_RISK:
        return True, (
            f"Too little data for {percent(share)}: only "
            f"{counted(advised.at_risk, 'operation')} waited as long as "
            f"{duration(advised.time_us)}. Collect more, or choose a larger share."
        )
    now = survival_at(steps, ended.timeout_us)
    return False, (
        f"With {duration(advised.time_us)}, {percent(share)} would expire; with the present "
        f"{duration(ended.timeout_us)} it is {percent(now)} of those that nothing else ends. "
        f"{_direction(advised.time_us, ended.timeout_us)}"
    )


def _direction(advised_us: int, timeout_us: int) -> str:
    if advised_us > timeout_us * 1.1:
        return "With a longer timeout more of them would fire."
    if advised_us < timeout_us * 0.9:
        return "A shorter timeout is enough and ends vain waits sooner."
    return "Keep it."


def _first(times: Iterable[int]) -> int | None:
    return next(iter(times), None)
