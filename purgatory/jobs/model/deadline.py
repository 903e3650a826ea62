"""Deadlines of jobs, relative or absolute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from purgatory.job_errors import InvalidDeadlineError
from purgatory.jobs.model.limits import JobLimits
from purgatory.timer.clock import Seconds, seconds_of

__all__ = ["Deadline"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def utc(wall_ms: int) -> datetime:
    """Return wall milliseconds as a datetime in UTC; raise OverflowError beyond the calendar."""
    return _EPOCH + timedelta(milliseconds=wall_ms)


def utc_ms(at: datetime) -> int:
    """Return a datetime with a zone as wall milliseconds, rounded up."""
    return -((_EPOCH - at) // _MS)


def rfc3339(moment: datetime) -> str:
    """Return a time in UTC as responses, callbacks and errors have it: to the millisecond."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A delay from now, or an absolute time; exactly one of the two.

    The store adds a delay to its own clock, so that the clock of the calling process does not
    matter.
    """

    delay_ms: int | None = None
    at_ms: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidDeadlineError unless exactly one is given."""
        if (self.delay_ms is None) == (self.at_ms is None):
            raise _not_one_of(self.delay_ms, self.at_ms)

    @classmethod
    def of(
        cls, *, delay: Seconds | None, at: datetime | None, limits: JobLimits | None = None
    ) -> Deadline:
        """Return the deadline `delay` seconds from now, or `at`, rounded up to a millisecond.

        Raises InvalidDeadlineError for both or neither, a delay that is negative, NaN or above the
        limit, and an `at` without a time zone. An `at` in the past is found by the store's clock.
        """
        limits = JobLimits() if limits is None else limits
        check_given(delay, at)
        if at is not None:
            if at.tzinfo is None or at.utcoffset() is None:
                raise InvalidDeadlineError(
                    f"at is {at.isoformat()}, without a zone: say which it is in, as "
                    f"{at.isoformat()}+00:00 does",
                    param="at",
                )
            return cls(at_ms=utc_ms(at))
        assert delay is not None
        return cls(delay_ms=seconds_to_ms(delay, "delay", limits))

    def resolve(self, now_ms: int, limits: JobLimits) -> int:
        """Return the deadline in wall milliseconds, if the store's clock is at `now_ms`.

        Raises InvalidDeadlineError if it is too far in the past or in the future.
        """
        deadline_ms = self._since(now_ms)
        late_ms = now_ms - deadline_ms
        if late_ms > limits.past_tolerance_ms:
            raise InvalidDeadlineError(
                f"the deadline {_text(deadline_ms)} lies {_seconds(late_ms)} in the past, by the "
                f"store's clock; up to {_seconds(limits.past_tolerance_ms)} are allowed: give a "
                "delay of 0 to run at once",
                param=self._param,
            )
        if -late_ms > limits.max_delay_ms:
            raise InvalidDeadlineError(
                f"the deadline {_text(deadline_ms)} lies {_seconds(-late_ms)} ahead; the limit is "
                f"{_seconds(limits.max_delay_ms)}: defer a job that defers the next",
                param=self._param,
            )
        return max(deadline_ms, now_ms)

    def near(self, now_ms: int, limits: JobLimits) -> int:
        """Return the deadline as `resolve` does, but never before now or beyond the limit."""
        return min(max(self._since(now_ms), now_ms), now_ms + limits.max_delay_ms)

    def _since(self, now_ms: int) -> int:
        if self.at_ms is not None:
            return self.at_ms
        assert self.delay_ms is not None
        return now_ms + self.delay_ms

    @property
    def _param(self) -> str:
        return "delay" if self.at_ms is None else "at"


def seconds_to_ms(duration: Seconds, name: str, limits: JobLimits) -> int:
    """Return `duration` in milliseconds, rounded up: never early.

    Raises InvalidDeadlineError unless 0 <= seconds <= the limit, TypeError unless it is a number.
    """
    seconds = seconds_of(duration)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} is {seconds!r}: give a number of seconds")
    maximum = limits.max_delay_ms / 1_000
    # Written so that NaN, which compares as false, raises.
    if not 0 <= seconds <= maximum:
        raise InvalidDeadlineError(
            f"{name} is {seconds!r}: give a number of seconds from 0 to {maximum:.0f}", param=name
        )
    # Rounded to a microsecond first: 0.003 * 1_000 is slightly more than 3.
    return math.ceil(round(seconds * 1_000, 3))


def check_given(delay: Seconds | None, at: datetime | None) -> None:
    """Raise InvalidDeadlineError unless exactly one is given, TypeError for another `at`."""
    if at is not None and not isinstance(at, datetime):
        raise TypeError(f"at is {at!r}: give a datetime with a zone")
    if (delay is None) == (at is None):
        # As the caller gave them: seconds and a datetime.
        raise _not_one_of(delay, None if at is None else at.isoformat())


def _not_one_of(delay: object, at: object) -> InvalidDeadlineError:
    if delay is None and at is None:
        return InvalidDeadlineError("neither delay nor at is given: give exactly one of the two")
    return InvalidDeadlineError(f"delay is {delay} and at is {at}: give exactly one of the two")


def _seconds(ms: int) -> str:
    return f"{ms / 1_000:.3f}".rstrip("0").rstrip(".") + " seconds"


def _text(wall_ms: int) -> str:
    try:
        return rfc3339(utc(wall_ms))
    except OverflowError:
        return f"{wall_ms} ms after 1970"
