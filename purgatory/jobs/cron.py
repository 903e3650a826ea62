"""Times by a cron expression, on the clocks of a time zone. Needs the extra `cron`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from purgatory.jobs.model.deadline import utc, utc_ms

try:
    from cronsim import CronSim, CronSimError
except ImportError as exc:
    raise ImportError("cron= needs cronsim: pip install 'fastapi-purgatory[cron]'") from exc

_MINUTE: Final = timedelta(minutes=1)
# Further than clocks go back.
_MARGIN: Final = timedelta(hours=3)


class CronGrid:
    """The times of an expression, as Debian's cron has them where the clocks are set.

    A time of the day that the clocks leave out (in spring) is the first minute after the gap, and
    one that they show twice (in autumn) is the first of the two. Expressions whose minute or hour
    begins with `*`, such as `*/5`, are of real time: they have nothing in the gap, and both hours.
    """

    # CronSim is used without a zone, as its own rule depends on where it begins, in a zone whose
    # clocks are set by half an hour: processes would not agree on the times.

    def __init__(self, expression: str, timezone: str | tzinfo) -> None:
        """Check both; raise ValueError."""
        self._expression = expression
        self._zone = _zone(timezone)
        fields = expression.split()
        self._is_of_real_time = any(field.startswith("*") for field in fields[:2])
        try:
            if len(fields) != 5:
                raise CronSimError("it has not five fields")
            next(CronSim(expression, datetime(2000, 1, 1)))
        except (CronSimError, StopIteration) as exc:
            raise ValueError(
                f"cron is {expression!r}: {str(exc) or 'no time is like that'}; give minute, hour, "
                "day of the month, month and day of the week, as in '0 6 * * mon-fri'"
            ) from exc

    def after(self, wall_ms: int) -> int:
        """Return the first time that is later than `wall_ms`, in wall milliseconds."""
        local = utc(wall_ms).astimezone(self._zone).replace(tzinfo=None)
        found_ms = utc_ms(next(CronSim(self._expression, local)).replace(tzinfo=self._zone))
        if self._is_steady(wall_ms) and self._is_steady(found_ms):
            return found_ms
        found_ms, last = 0, datetime.max
        # From before and to after an hour that comes twice, whose times are not in order.
        for shown in CronSim(self._expression, local - _MARGIN):
            if shown > last:
                break
            for at_ms in self._times(shown):
                if at_ms > wall_ms and (not found_ms or at_ms < found_ms):
                    found_ms, last = at_ms, shown + _MARGIN
        return found_ms

    def _is_steady(self, wall_ms: int) -> bool:
        """Return True iff the clocks are not set around this time."""
        at = utc(wall_ms)
        before, after = (each.astimezone(self._zone) for each in (at - _MARGIN, at + _MARGIN))
        return before.utcoffset() == after.utcoffset()

    def _times(self, shown: datetime) -> Iterator[int]:
        """Yield when the clocks show this; of a time that they leave out, the first one after."""
        while self._is_left_out(shown):
            if self._is_of_real_time:
                return
            shown += _MINUTE
        times = {utc_ms(shown.replace(tzinfo=self._zone, fold=fold)) for fold in (0, 1)}
        yield from times if self._is_of_real_time else [min(times)]

    def _is_left_out(self, shown: datetime) -> bool:
        at = shown.replace(tzinfo=self._zone)
        return utc(utc_ms(at)).astimezone(self._zone).replace(tzinfo=None) != shown

    def __str__(self) -> str:
        """Name the expression and the zone."""
        return f"{self._expression} {self._zone}"


def _zone(timezone: str | tzinfo) -> tzinfo:
    if isinstance(timezone, tzinfo):
        return timezone
    try:
        return ZoneInfo(timezone)
    except (KeyError, OSError, ValueError) as exc:
        raise ValueError(
            f"timezone is {timezone!r}, which is not known here: give a name such as "
            "'Europe/Berlin'; a system without time zones needs the package tzdata"
        ) from exc
