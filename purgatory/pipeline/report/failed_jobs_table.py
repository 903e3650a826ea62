"""The table of failed jobs with an error of each kind, as HTML."""

from __future__ import annotations

from html import escape

from purgatory.pipeline.report.findings import LISTED_KINDS, Findings
from purgatory.pipeline.report.html_table import name_cell, percent_cell, table

# Characters of an error.
_SHOWN_ERROR = 300


def failed_jobs_table(findings: Findings) -> str:
    """Return the jobs that failed by kind, with an error of each; "" if none did."""
    if not findings.failed_jobs:
        return ""
    totals = {row["kind"]: row["operations"] for row in findings.by_kind}
    rows = (
        [
            name_cell(row["kind"]),
            f"<td>{row['jobs']:,}</td>",
            percent_cell(row["jobs"] / max(row["jobs"], totals.get(row["kind"], 0))),
            f'<td class="text">{escape(shortened(row["error"] or "unknown"))}</td>',
        ]
        for row in findings.failed_jobs[:LISTED_KINDS]
    )
    caption = "Failed jobs: fired or expired is how the wait ended, failed how the job did"
    return table(("kind", "failed", "share", "latest error"), rows, caption)


def shortened(error: str) -> str:
    """Return an error in at most a few lines of a table."""
    return error if len(error) <= _SHOWN_ERROR else f"{error[:_SHOWN_ERROR]}…"
