"""The name of the job `waits`, which writes the tables of waits, and the steps of its timeline."""

from __future__ import annotations

JOB = "waits"

_WIDTHS_S = (60, 300, 900, 3_600, 21_600, 86_400)
_MOST_STEPS = 300


def step_width_s(span_s: int) -> int:
    """Return a width of the timeline's steps with which a chart of `span_s` has not too many."""
    return next((width for width in _WIDTHS_S if span_s / width <= _MOST_STEPS), _WIDTHS_S[-1])
