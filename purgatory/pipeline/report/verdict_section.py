"""The verdict, what to change first, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from purgatory.pipeline.report.verdict import Change


def verdict_section(
    found: Sequence[Change], undecided: Sequence[str], left_out: Sequence[str] = ()
) -> str:
    """Return what to change first.

    `undecided` are the kinds without advice on their timeout, `left_out` the faults that are not
    among the changes.
    """
    few = (
        f'<p class="faint">Also found: {escape("; ".join(left_out))}. '
        '<a href="#read">What was read</a> says more of the data.</p>'
        if left_out
        else ""
    )
    if not found and undecided:
        kinds = ", ".join(undecided)
        return (
            '<section id="verdict" class="card"><h2>Nothing is known to need a change</h2>'
            f"<p>These operations do not tell which timeout is right for {escape(kinds)}: "
            f'<a href="#advice">Advice</a> says why.</p>{few}</section>'
        )
    if not found:
        return (
            '<section id="verdict" class="card good"><h2>Nothing needs to change</h2>'
            f"{few}</section>"
        )
    items = "".join(
        f"<li><strong>{escape(change.what)}</strong><p>{escape(change.why)}</p>"
        + (f"<pre tabindex=0><code>{escape(change.setting)}</code></pre>" if change.setting else "")
        + "</li>"
        for change in found
    )
    return (
        '<section id="verdict" class="card"><h2>What to change first</h2>'
        f'<ol class="verdict">{items}</ol>{few}</section>'
    )
