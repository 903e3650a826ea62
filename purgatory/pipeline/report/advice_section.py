"""The advice on timeouts, workers and the wheel, as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from purgatory.pipeline.console.formatting import counted, duration, figure, percent
from purgatory.pipeline.report.findings import LISTED_KINDS
from purgatory.pipeline.report.html_table import (
    cells,
    folded,
    name_cell,
    table,
    time_or,
    with_interval,
)


def advice_section(advice: Mapping[str, Any]) -> str:
    """Return the whole advice."""
    return "".join(
        f'<div class="card">{part}</div>'
        for part in (
            _timeouts(advice["timeouts"]),
            _workers(advice["workers"]),
            _geometry(advice["geometry"]),
        )
    )


def _timeouts(timeouts: Sequence[Mapping[str, Any]]) -> str:
    if not timeouts:
        return "<h3>Timeouts</h3><p>No kind has a timeout.</p>"
    share = percent(timeouts[0]["chosen_share"])
    header = ("kind", "median timeout", "expired (95 %)", f"timeout for {share} (95 %)", "why")
    rows = map(_timeout_row, timeouts[:LISTED_KINDS])
    more = len(timeouts) - LISTED_KINDS
    rest = f"<p>And {counted(more, 'kind')} more, in advice.json.</p>" if more > 0 else ""
    return f"<h3>Timeouts</h3>{table(header, rows, 'A timeout for each kind')}{rest}"


def _timeout_row(advice: Mapping[str, Any]) -> list[str]:
    high = time_or(advice["high_us"], "beyond the observed waits")
    between = f"{time_or(advice['low_us'], '?')} to {high}"
    shares = (percent(advice[f"expired_share_{name}"]) for name in ("low", "high"))
    return [
        name_cell(advice["kind"]),
        f"<td>{duration(advice['timeout_us'])}</td>",
        with_interval(percent(advice["expired_share"]), " to ".join(shares)),
        "<td>none</td>"
        if advice["advised_us"] is None
        else with_interval(duration(advice["advised_us"]), between),
        f'<td class="text">{_reason(advice)}</td>',
    ]


def _workers(advice: Mapping[str, Any]) -> str:
    text = f"<h3>Workers</h3><p>{_reason(advice)}</p>"
    if advice["workers"] is None:
        return text
    header = ("", "p99.9 of the minutes of the busiest day (95 %)", "highest", "at (UTC)")
    found = table(header, _peaks(advice), "The load at the peaks")
    return f"{text}{found}<p><strong>{counted(advice['workers'], 'worker')}</strong></p>"


def _peaks(advice: Mapping[str, Any]) -> Iterator[list[str]]:
    for label, name in (("arrivals, a second", "arrivals_per_s"), ("parked", "parked")):
        peak = advice[name]
        value, low, high = (figure(peak[part], 4) for part in ("value", "low", "high"))
        at = datetime.fromtimestamp(peak["highest_start_s"], UTC)
        yield [
            name_cell(label),
            with_interval(value, f"{low} to {high}"),
            f"<td>{figure(peak['highest'], 4)}</td>",
            f"<td>{at:%Y-%m-%d %H:%M}</td>",
        ]


def _geometry(advice: Mapping[str, Any]) -> str:
    text = f"<h3>Timing wheel</h3><p>{_reason(advice)}</p>"
    if advice["advised"] is None:
        return text
    rows = []
    for wheel in advice["candidates"]:
        mark = " (advised)" if wheel == advice["advised"] else ""
        mark += " (default)" if wheel == advice["default"] else ""
        moves = f"{wheel['cascades_low']:.2f} to {wheel['cascades_high']:.2f}"
        rows.append(
            [
                *cells(
                    f"{wheel['tick_ms']} ms x {wheel['wheel_size']}{mark}", f"{wheel['levels']}"
                ),
                with_interval(f"{wheel['cascades']:.2f}", moves),
                f"<td>{wheel['bytes'] / 1024:,.0f} KiB</td>",
            ]
        )
    found = table(
        ("tick x buckets", "levels", "moves of a timer (95 %)", "memory at the peak"),
        rows,
        f"Computed from {counted(advice['timers'], 'timer')}, at most "
        f"{advice['peak_parked']:,} pending",
    )
    return text + folded("All candidates", found)


def _reason(advice: Mapping[str, Any]) -> str:
    text = escape(advice["reason"])
    if not advice["is_thin"]:
        return text
    # "Too little data: ..."
    warning, colon, rest = text.partition(":")
    return f'<strong class="thin">{warning}{colon}</strong>{rest}'
