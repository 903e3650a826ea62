"""What changed since the previous run, as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from purgatory.pipeline.console.formatting import counted, duration, percent
from purgatory.pipeline.report.html_table import name_cell, table
from purgatory.pipeline.report.notable_changes import Changes, KindChange
from purgatory.pipeline.report.read_section import minute_of

_SHOWN_KINDS = 12
# A smaller difference is not marked.
_MARKED = 0.05


def changes_section(found: Changes | None) -> str:
    """Return what changed since the previous run."""
    title = '<section id="changes" class="card"><h2>Since the previous run</h2>'
    if found is None:
        return (
            f"{title}<p>This is the first report in its folder: the next one says here what has "
            "changed.</p></section>"
        )
    new = f"{counted(found.operations, 'new operation')} since {minute_of(found.as_of)} UTC."
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in found.sentences)
    notable = f"<ul>{items}</ul>" if items else "<p>Nothing notable has changed.</p>"
    rows = map(_row, found.kinds[:_SHOWN_KINDS])
    header = ("kind", "ended since", "expired", "wait: p50", "p99")
    compared = table(header, rows, "Before the previous run, and since") if found.kinds else ""
    return f'{title}<p class="faint">{new}</p>{notable}{compared}</section>'


def _row(change: KindChange) -> list[str]:
    before, since = change.before, change.since
    shares = (before.expired_share if before.ended else None, since.expired_share)
    return [
        name_cell(change.kind),
        f"<td>{since.ended:,}</td>",
        # As in the sentences above: what may be chance is not marked.
        _compared(shares, tuple(_shares(shares)), is_marked=change.has_other_share),
        *(_waits(change, percents) for percents in (50.0, 99.0)),
    ]


def _shares(shares: tuple[float | None, float]) -> Iterator[str]:
    for share in shares:
        yield "" if share is None else percent(share)


def _waits(change: KindChange, percents: float) -> str:
    old, new = (part.percentile_us(percents) for part in (change.before, change.since))
    texts = ("" if old is None else duration(old), "too few" if new is None else duration(new))
    return _compared((old, new), texts)


def _compared(
    values: tuple[float | None, float | None], texts: tuple[str, ...], *, is_marked: bool = True
) -> str:
    """Return a cell with an earlier value and the present one; longer and more is worse."""
    (old, new), (before, since) = values, texts
    if old is None or new is None or not before:
        return f"<td>{escape(since)}</td>"
    # A share of nothing has no ratio.
    ratio = (new + 1e-9) / (old + 1e-9) if is_marked else 1.0
    mark = "worse" if ratio > 1 + _MARKED else "better" if ratio < 1 - _MARKED else "same"
    arrow = {"worse": "&#9650;", "better": "&#9660;", "same": ""}[mark]
    word = {"worse": "up", "better": "down", "same": ""}[mark]
    sign = f'<i aria-hidden="true">{arrow}</i><span class="hidden">{word}</span>' if word else ""
    return f'<td class="{mark}">{sign}{escape(since)}<small>was {escape(before)}</small></td>'
