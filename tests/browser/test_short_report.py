"""The report of less than a minute, in a real browser: the first that a new user sees."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from purgatory.pipeline.__main__ import main
from tests.browser.chromium import needs_chromium
from tests.browser.devtools import Page, browser
from tests.pipeline.rolled import START, write_outcomes

pytestmark = [needs_chromium, pytest.mark.anyio]

# The number of pixels in one of the colours of the lines of a chart.
COLOURED = """(name => {{
  const chart = sections[1].charts.find(chart => chart.name === name);
  const canvas = chart.plot.querySelector('canvas');
  const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = chart.chart.keys.map(({{ colour }}) => parseInt(colour.slice(1), 16));
  let found = 0;
  for (let at = 0; at < data.length; at += 4)
    found += colours.includes((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
  return found;
}})({!r})"""


def outcome(second: float, wait_s: float, **more: Any) -> dict[str, Any]:
    """Return an operation that began at a second."""
    at = START + timedelta(seconds=second)
    return {"watched_at": at, "completed_at": at + timedelta(seconds=wait_s), **more}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report on requests and a job within a minute."""
    out = tmp_path_factory.mktemp("short")
    # Each duration once: cells of the heat map have one operation.
    rows = [outcome(place, 2.0**place / 100) for place in range(10)]
    rows.append(outcome(5, 10, kind="job:mail", handler="mail", state="done"))
    write_outcomes(out, rows, as_of=START + timedelta(seconds=40))
    for name in ("waits", "advise", "report"):
        assert main([name, "--engine", "duckdb", "--out", str(out)]) == 0
    return (out / "report" / "report.html").as_uri()


async def opened(page: Page, report: str, width: int) -> None:
    await page.look(width=width, height=900)
    await page.open(report)
    await page.until("document.readyState === 'complete' && !!document.querySelector('canvas')")


async def labels_of(page: Page, days: int) -> object:
    """Return the labels of three ticks of an axis of time, so many days apart."""
    step = timedelta(days=days).total_seconds()
    ticks = [START.timestamp() + place * step for place in range(3)]
    return await page.run(f"timeLabels(null, {ticks}, 0, 0, {step})")


async def test_a_minute_can_be_read(report: str) -> None:
    """Ticks differ, the one point of the job is visible, and the legend has one colour."""
    async with browser() as page:
        await opened(page, report, 1280)
        labels = await page.run("sections[0].charts[0].u.axes[0]._values")
        assert len(labels) > 2 and len(set(labels)) == len(labels)
        assert labels[1].count(":") == 2
        assert await labels_of(page, 6) == ["Fri 20\nNov", "Thu 26", "Wed 2\nDec"]
        assert await labels_of(page, 30) == ["Nov\n2026", "Dec", "Jan\n2027"]
        assert await page.run(COLOURED.format("percentiles")) > 20
        legend = await page.run("document.querySelector('#heat-figure .keys').textContent")
        assert legend == "1 operation"
        assert await page.run("document.querySelectorAll('#heat-figure .shades i').length") == 1
        assert page.errors == []


@pytest.mark.parametrize("width", [1280, 390])
async def test_few_waits_have_axes_that_can_be_read(report: str, width: int) -> None:
    """One job is a bar of 100 %; axes of waits have two labels or more, and none is cut."""
    async with browser() as page:
        await opened(page, report, width)
        charts = "sections.flatMap(({charts}) => charts).filter(({u}) => u)"
        job = "sections[1].charts.find(({name}) => name === 'waits').u"
        assert await page.run(f"Math.max(...{job}.data[1])") == pytest.approx(1)
        assert "100 %" in await page.run(f"{job}.axes[1]._values")
        labels = await page.run(
            f"{charts}.flatMap(({{u}}) => u.axes.filter(({{scale}}) => u.scales[scale].distr === 3)"
            ".map(axis => axis._values))"
        )
        assert labels and all(len(set(found)) == len(found) > 1 for found in labels)
        # The first label of a time axis is in the middle of its tick.
        cut = (
            f"{charts}.filter(({{u}}) => u.scales.x.time).filter(({{u}}) => {{"
            "u.ctx.font = u.axes[0].font[0];"
            "const [first] = String(u.axes[0]._values[0]).split('\\n');"
            "const left = u.valToPos(u.axes[0]._splits[0], 'x', true);"
            "return left < u.ctx.measureText(first).width / 2; }).map(({name}) => name)"
        )
        assert await page.run(cut) == []


async def test_no_expired_operation_is_earlier_than_the_earliest(report: str) -> None:
    """Of two kinds, the share of the later one is 0 until its first; it was drawn as 100 %."""
    lateness = [[[20, 100], [0.5, 1]], [[50, 200], [0.25, 1]]]
    groups = "[0, 1].map(number => ({number, name: `kind-${number}`, colour: '#123456'}))"
    async with browser() as page:
        await opened(page, report, 1280)
        section = f"{{groups: () => {groups}, data: {{lateness: {lateness}}}}}"
        times, *shares = await page.run(f"latenessChart({section}).data")
        assert times == [20, 50, 100, 200]
        assert shares == [[0.5, 0.5, 1, 1], [0, 0.25, 0.25, 1]]


async def test_the_first_cards_use_the_width(report: str) -> None:
    """Two columns of which neither is half empty, and out of which no long word runs."""
    setting = "Purgatory(tick_ms=1, wheel_size=1024, and_so_on=1234567890)"
    async with browser() as page:
        await opened(page, report, 1280)
        ends = await page.run(
            "[...new Set([...document.querySelectorAll('.two > *')].map(one => one.offsetLeft))]"
            ".map(left => Math.max(...[...document.querySelectorAll('.two > *')]"
            ".filter(one => one.offsetLeft === left).map(one => one.offsetTop + one.offsetHeight)))"
        )
        top = await page.run("document.querySelector('.two').offsetTop")
        assert len(ends) == 2 and (min(ends) - top) > (max(ends) - top) / 2
        words = await page.run("document.querySelector('#read').textContent")
        assert "Lostno operation is without an end" in words
        assert "Still waitingnone" in words
        tiles = await page.run("document.querySelector('.tiles').textContent")
        assert "fired requests100.0%" in tiles
        for width in (1280, 390):
            await opened(page, report, width)
            await page.run(
                "document.querySelector('#verdict').insertAdjacentElement('beforeend', made('ol', "
                f"{{class: 'verdict'}}, made('p', {{}}, 'x'.repeat(200)), "
                f"made('pre', {{}}, made('code', {{}}, {setting!r}))))"
            )
            for part in (".verdict pre", ".verdict"):
                found = f"[...document.querySelectorAll('{part}')].at(-1)"
                assert await page.run(f"{found}.scrollWidth <= {found}.clientWidth")
            assert await page.run("document.documentElement.scrollWidth") == width
