"""The pipeline's report in a real browser: charts that respond, on a phone and on a wide screen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest

from purgatory.pipeline.__main__ import main
from purgatory.pipeline.advise.advice import Targets
from purgatory.pipeline.report.changes import changes, summary_of
from purgatory.pipeline.report.findings import Findings, findings
from purgatory.pipeline.report.page import page as page_of
from purgatory.pipeline.report.page import parts_of
from purgatory.pipeline.report.verdict import verdict
from purgatory.pipeline.rollups.wait_tables import rows_of
from purgatory.pipeline.run import Run
from purgatory.pipeline.sql.duck import connected
from purgatory.pipeline.sql.values import texts
from tests.browser.chromium import needs_chromium
from tests.browser.devtools import SCREENS, Page, browser
from tests.synthetic_journal import KINDS, SyntheticJournal, inject

pytestmark = [needs_chromium, pytest.mark.anyio]

HOSTILE = '</script><img src=x onerror="document.title=1">'
PLOTS = ("outcomes", "percentiles", "heat", "parked", "waits", "survival", "lateness")

# Elements whose right end is outside of the window, except in what scrolls by itself.
OUTSIDE = """[...document.querySelectorAll('body *')].filter(element =>
  element.getBoundingClientRect().right > document.documentElement.clientWidth + 1 &&
  element.checkVisibility() && !element.closest('.scroll, pre, .hidden, .skip')
).map(element => element.outerHTML.slice(0, 80))"""

# Texts with less contrast than WCAG 2.2 asks for, 4.5 to 1, as [ratio, text].
PALE = """(() => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const luminance = colour => channels(colour).slice(0, 3)
    .map(one => one / 255).map(one => one <= .04045 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4)
    .reduce((sum, one, place) => sum + one * [.2126, .7152, .0722][place], 0);
  const below = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const pale = new Map();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || !element.checkVisibility() || element.closest('script, :disabled')) continue;
    const [one, other] = [getComputedStyle(element).color, below(element)].map(luminance);
    const ratio = (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
    if (ratio < 4.5) pale.set(text.slice(0, 30), Math.round(ratio * 100) / 100);
  }
  return [...pale].slice(0, 20);
})()"""


@dataclass(frozen=True, slots=True)
class Written:
    """A report, and what it was made from."""

    url: str
    findings: Findings

    def outcomes(self, kinds: set[str], step: int) -> Counter[str]:
        """Return the operations of these kinds in one step of the timeline."""
        query = f"""
            SELECT outcome, sum(count)::BIGINT FROM found
            WHERE epoch(start - (SELECT min(start) FROM found)) // width_s = {step}
            AND kind IN ({texts(kinds)}) GROUP BY ALL
        """
        return Counter(dict(rows_of(self.findings.timeline, query)))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A report on a day with a crash, a broken file, jobs, and a kind with a hostile name."""
    folder = tmp_path_factory.mktemp("report")
    kinds = (*KINDS[:2], replace(KINDS[2], name=HOSTILE, key_prefix=f"{HOSTILE}:"), KINDS[3])
    SyntheticJournal(operations=9_000, hours=26, kinds=kinds, crashes=(20.0,)).write(
        folder / "journal"
    )
    inject(folder / "journal", "truncated")
    out = str(folder / "out")
    arguments = ["advise", "--engine", "duckdb", "--journal", str(folder / "journal")]
    assert main([*arguments, "--out", out]) == 0
    found = findings(Run(out, connected(threads=1)))
    now = summary_of(found, "history")
    before = replace(now, as_of="2026-11-20T00:00:00", operations=0, kinds={})
    file = folder / "report.html"
    judged, parts = verdict(found, Targets()), list(parts_of(found))
    content = page_of(
        found, judged, parts, changes(now, before), title="A report", journal="history"
    )
    file.write_text(content, encoding="utf-8")
    return Written(file.as_uri(), found)


async def opened(page: Page, report: Written, *, width: int, is_dark: bool = False) -> None:
    await page.look(width=width, height=900, is_dark=is_dark)
    await page.open(report.url)
    await page.until(
        "document.readyState === 'complete' && location.protocol === 'file:' && "
        "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('canvas'))"
    )


async def mouse(page: Page, kind: str, x: float, y: float) -> None:
    button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
    await page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)


async def middle_of(page: Page, chart: str, share: float = 0.5) -> tuple[float, float]:
    """Scroll to a chart; return a place in it, `share` of its width from the left."""
    await page.run(
        f"document.querySelector('#{chart}-figure').scrollIntoView({{behavior: 'instant'}})"
    )
    left, top, width, height = await page.run(
        f"(box => [box.left, box.top, box.width, box.height])"
        f"(document.querySelector('#{chart}-figure .u-over').getBoundingClientRect())"
    )
    return left + share * width, top + height / 2


async def tip(page: Page) -> tuple[str, dict[str, str]]:
    """Return the title of what is shown beside the pointer, and its values by name."""
    await page.until("!document.getElementById('tip').hidden")
    title, rows = await page.run(
        "[tip.querySelector('b').textContent, [...tip.querySelectorAll('div')].map("
        "row => [...row.querySelectorAll('span')].map(span => span.textContent))]"
    )
    return title, dict(rows)


@pytest.mark.parametrize(("width", "is_dark"), SCREENS)
async def test_nothing_is_cut_off_or_pale(report: Written, width: int, is_dark: bool) -> None:
    """No sideways scrolling, readable texts, every chart drawn, no error and no request."""
    async with browser() as page:
        await opened(page, report, width=width, is_dark=is_dark)
        assert await page.run("document.documentElement.scrollWidth") == width
        assert await page.run(OUTSIDE) == []
        assert await page.run(PALE) == []
        drawn = await page.run(
            "[...document.querySelectorAll('#requests .plot canvas')].map(canvas => new Set(canvas"
            ".getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size)"
        )
        assert len(drawn) == len(PLOTS) and all(colours > 10 for colours in drawn)
        assert await page.run("performance.getEntriesByType('resource').length") == 0
        assert await page.run("fetch('data:,').then(() => 'sent', () => 'blocked')") == "blocked"
        # The violation that this line has just made is the only one.
        assert [error for error in page.errors if "data:," not in error] == []
        assert (await page.run("document.title")).startswith("A report, 2026-")


async def test_the_pointer_shows_the_figures_of_the_table(report: Written) -> None:
    """Of the step below it, and only those of the chosen kinds and outcomes."""
    async with browser() as page:
        await opened(page, report, width=1280)
        steps = await page.run("sections[0].counts.count")
        place = (steps // 2 + 0.1) / steps
        await mouse(page, "mouseMoved", *await middle_of(page, "outcomes", place))
        title, values = await tip(page)
        parked = {row["kind"] for row in report.findings.by_kind if "job:" not in row["kind"]}
        expected = report.outcomes(parked, steps // 2)
        assert {name: int(value) for name, value in values.items() if value != "0"} == expected
        assert title.startswith("2026-11-20 ")
        chips = "[...document.querySelectorAll('#requests .chip')]"
        for name in ("watch", "fired"):
            await page.run(f"{chips}.find(chip => chip.textContent === {name!r}).click()")
        await mouse(page, "mouseMoved", *await middle_of(page, "outcomes", place))
        expected = report.outcomes(parked - {"watch"}, steps // 2)
        del expected["fired"]
        _, values = await tip(page)
        assert {name: int(value) for name, value in values.items() if value != "0"} == expected
        assert (
            await page.run(
                f"{chips}.map(chip => chip.ariaPressed).filter(one => one === 'false').length"
            )
            == 2
        )
        for chart in PLOTS[1:]:
            await mouse(page, "mouseMoved", *await middle_of(page, chart, 0.6))
            title, values = await tip(page)
            assert title and values, chart
        assert page.errors == []


async def test_a_drag_zooms_all_charts_of_time(report: Written) -> None:
    """Those of its part of the page; a button undoes it."""
    async with browser() as page:
        await opened(page, report, width=1280)
        whole = await page.run("sections[0].range")
        low, y = await middle_of(page, "outcomes", 0.25)
        high, _ = await middle_of(page, "outcomes", 0.5)
        for kind, x in (("mousePressed", low), ("mouseMoved", high), ("mouseReleased", high)):
            await mouse(page, kind, x, y)
        await page.until(f"sections[0].range[1] < {whole[1]}")
        start, end = await page.run("sections[0].range")
        assert 0.2 < (end - start) / (whole[1] - whole[0]) < 0.3
        scales = await page.run(
            "sections[0].charts.filter(chart => !chart.chart.isLocal)"
            ".map(chart => [chart.u.scales.x.min, chart.u.scales.x.max])"
        )
        assert scales == [[start, end]] * 4
        assert await page.run("sections[1].range") == whole
        assert " to " in await page.run(
            "document.querySelector('#requests .filters [role=status]').textContent"
        )
        await page.run("sections[0].whole.click()")
        assert await page.run("sections[0].range") == whole


async def test_everything_is_reachable_by_keys(report: Written) -> None:
    """Arrows move along a chart, plus and minus zoom, Escape returns to the whole."""
    async with browser() as page:
        await opened(page, report, width=1280)
        whole = await page.run("sections[0].range")
        for chart in PLOTS:
            await page.run(f"document.querySelector('#{chart}-figure .plot').focus()")
            await page.press("ArrowRight", 39)
            first = await tip(page)
            await page.press("End", 35)
            assert await tip(page) != first, chart
        await page.run("document.querySelector('#heat-figure .plot').focus()")
        await page.press("Home", 36)
        before = await tip(page)
        await page.press("ArrowUp", 38)
        after = await tip(page)
        assert before[0] == after[0] and before[1] != after[1]
        await page.press("+", 187)
        await page.until(f"sections[0].range[1] < {whole[1]}")
        await page.press("Escape", 27)
        assert await page.run("sections[0].range") == whole
        unreachable = await page.run(
            "[...document.querySelectorAll('.scroll, .plot, pre')]"
            ".filter(one => one.tabIndex < 0).length"
        )
        assert unreachable == 0 and page.errors == []


async def test_colours_follow_the_theme_and_keys_are_found(report: Written) -> None:
    """Also while the page is open; and the list of keys is filtered as one types."""
    async with browser() as page:
        await opened(page, report, width=390)
        colour = "sections[0].charts[0].chart.keys[0].colour"
        light = await page.run(colour)
        await page.look(width=390, height=900, is_dark=True)
        await page.until(f"{colour} !== {light!r}")
        await page.run(
            "(field => { field.value = 'ORDER:1'; field.dispatchEvent(new Event('input')); })"
            "(document.querySelector('.find input'))"
        )
        shown = await page.run(
            "[...document.querySelectorAll('.find + .scroll tbody tr')]"
            ".filter(row => row.checkVisibility()).map(row => row.cells[0].textContent)"
        )
        assert shown and all(key.startswith("order:1") for key in shown)
        assert page.errors == []
