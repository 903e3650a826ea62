"""Parked operations by day and hour, as a table whose cells are coloured."""

from __future__ import annotations

import math
from datetime import date, datetime
from html import escape

from purgatory.pipeline.console.formatting import figure, short
from purgatory.pipeline.report.charts.time_charts import HourlyLoad

SHADES = 10
"""Classes q0 to q9 of the style sheet: a scale on which equal steps look equal."""
# From this ratio of the highest to the lowest on, the scale is logarithmic.
_WIDE = 20
_WIDEST = 1_000


def hours_table(load: HourlyLoad) -> str:
    """Return the last days as rows of 24 cells, with the scale."""
    days, shown = load.last_days()
    high = max(shown.values(), default=0.0)
    if not high:
        return ""
    # The journal's first and last hour are partly covered: they are not the scale's lower end.
    means = sorted(mean for mean in shown.values() if mean > 0)
    low = max(high / _WIDEST, means[len(means) // 20])
    rows = "".join(_row(day, shown, low, high) for day in days)
    hours = "".join(f'<th scope="col">{hour:02d}</th>' for hour in range(24))
    # The scale has a lower end above zero: an hour without operations has no colour.
    shades = "".join(f'<i class="q{shade}"></i>' for shade in range(SHADES))
    kind = "logarithmic" if high > _WIDE * low else "linear"
    return (
        '<div class="scroll" role="region" aria-label="Parked, by day and hour" tabindex="0">'
        "<table class=hours><caption>Mean number of parked operations, by day and hour (UTC)"
        f'</caption><thead><tr><th scope="col">day</th>{hours}</tr></thead><tbody>{rows}</tbody>'
        f'</table></div><p class="scale faint"><span>{figure(low)}</span>'
        f'<span class="shades" aria-hidden="true">{shades}</span><span>{figure(high)}, {kind}'
        "</span></p>"
    )


def _row(day: date, shown: dict[datetime, float], low: float, high: float) -> str:
    by_hour = {hour.hour: mean for hour, mean in shown.items() if hour.date() == day}
    cells = "".join(_cell(day, hour, by_hour.get(hour), low, high) for hour in range(24))
    return f'<tr><th scope="row">{day:%a %d} <span>{day:%b}</span></th>{cells}</tr>'


def _cell(day: date, hour: int, mean: float | None, low: float, high: float) -> str:
    if mean is None:
        return "<td></td>"
    text = f"{day:%Y-%m-%d} {hour:02d}:00: {figure(mean)} parked"
    shade = shade_of(mean, low, high)
    return f'<td class="q{shade}" title="{text}"><span>{escape(short(mean))}</span></td>'


def shade_of(value: float, low: float, high: float) -> int:
    """Return the shade of a value between `low` and `high`, which are above zero."""
    if high <= low:
        return SHADES - 1
    if value <= low:
        return 0
    if high > _WIDE * low:
        share = math.log(value / low) / math.log(high / low)
    else:
        share = (value - low) / (high - low)
    return min(SHADES - 1, int(share * SHADES))
