"""Which timeout a kind of operation should have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from purgatory.pipeline.console.formatting import counted, duration, percent
from purgatory.pipeline.statistics.binomial import clopper_pearson
from purgatory.pipeline.statistics.survival import Step, survival_at

LEAST_FIRED = 30
"""With fewer fires nothing is advised: the tail would rest on a handful of operations."""
LEAST_AT_RISK = 20
"""Of these so many have to be waiting still at the advised timeout, for the same reason."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of the operations of one kind."""

    kind: str
    operations: int
    fired: int
    expired: int
    lost: int
    timeout_us: int
    """The median of their timeouts."""


@dataclass(frozen=True, slots=True)
class TimeoutAdvice:
    """A timeout for one kind, or why there is none."""

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
    """Between these the true one is, at 95 %; None is beyond what was seen."""
    is_thin: bool
    reason: str


def advise_timeout(ended: Ended, steps: Sequence[Step], chosen_share: float) -> TimeoutAdvice:
    """Return the least timeout at which at most `chosen_share` of the operations would expire.

    `steps` is their Kaplan-Meier estimate. Where it does not come down to the share before the
    longest wait that was seen, no timeout is advised, since nothing was seen of what is beyond.
    """
    advised = next((step for step in steps if step.survival <= chosen_share), None)
    # The curve's lower band comes down first: the earliest that the true timeout may be.
    low_us = _first(step.time_us for step in steps if step.low <= chosen_share)
    high_us = _first(step.time_us for step in steps if step.high <= chosen_share)
    is_thin, reason = _judged(ended, steps, advised, chosen_share)
    share_low, share_high = clopper_pearson(ended.expired, ended.operations)
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
            f"The data is too thin: {counted(ended.fired, 'operation')} fired, and {LEAST_FIRED} "
            "are the least to go by. Collect more."
        )
    if advised is None:
        seen = steps[-1]
        return False, (
            f"No wait that was seen is long enough: after {duration(seen.time_us)} still "
            f"{percent(seen.survival)} would be waiting, more than {percent(share)}. Timeouts cut "
            "longer waits off; give some operations a longer one, and look again."
        )
    if advised.at_risk < LEAST_AT_RISK:
        return True, (
            f"The data is too thin for {percent(share)}: only "
            f"{counted(advised.at_risk, 'operation')} waited as long as "
            f"{duration(advised.time_us)}. Collect more, or choose a larger share."
        )
    now = survival_at(steps, ended.timeout_us)
    return False, (
        f"With {duration(advised.time_us)}, {percent(share)} would expire; with today's "
        f"{duration(ended.timeout_us)} it is {percent(now)} of those that nothing else ends. "
        f"{_direction(advised.time_us, ended.timeout_us)}"
    )


def _direction(advised_us: int, timeout_us: int) -> str:
    if advised_us > timeout_us * 1.1:
        return "A longer timeout would let more of them see what they wait for."
    if advised_us < timeout_us * 0.9:
        return "A shorter one would do, and free who waits in vain sooner."
    return "Leave it as it is."


def _first(times: Iterable[int]) -> int | None:
    return next(iter(times), None)
