"""The verdict, what to change first, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from purgatory.pipeline.report.verdict import Change


def verdict_section(found: Sequence[Change]) -> str:
    """Return what to change first."""
    if not found:
        return '<section id="verdict" class="card good"><h2>Nothing needs to change</h2></section>'
    items = "".join(
        f"<li><strong>{escape(change.what)}</strong><p>{escape(change.why)}</p>"
        + (f"<pre tabindex=0><code>{escape(change.setting)}</code></pre>" if change.setting else "")
        + "</li>"
        for change in found
    )
    return (
        '<section id="verdict" class="card"><h2>What to change first</h2>'
        f'<ol class="verdict">{items}</ol></section>'
    )
