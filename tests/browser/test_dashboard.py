"""The dashboard in a real browser: what it shows, and what it says when something is wrong."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources import files
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, HTTPException, Request

from purgatory import Purgatory
from purgatory.fastapi import BearerTokens, install
from purgatory.jobs import JobContext, MemoryJobStore
from purgatory.uvicorn import ParkingProtocol
from tests.browser.chromium import needs_chromium
from tests.browser.devtools import SCREENS, Page, browser
from tests.free_port import free_port
from tests.patience import PATIENCE_S, until

pytestmark = [needs_chromium, pytest.mark.anyio]

ALL, OBSERVER, WAITER = "token-of-all-rights", "token-of-an-observer", "token-of-a-waiter"
TOKENS = f"{ALL} *; {OBSERVER} observe; {WAITER} wait:*"
VIEWS = ("overview", "waits", "jobs", "workers")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_begun.set()


@asynccontextmanager
async def serving(
    port: int, tokens: str = TOKENS, authorize: Callable[..., Any] | None = None
) -> AsyncIterator[Purgatory]:
    """Serve a purgatory with jobs on `port`."""
    app, purgatory = FastAPI(), Purgatory(jobs=MemoryJobStore())

    @purgatory.handler("remind", http=True)
    async def remind(job: JobContext) -> None:
        await asyncio.sleep(0)

    install(app, purgatory, authorize=authorize or BearerTokens.from_text(tokens))
    config = uvicorn.Config(app, port=port, log_level="warning", http=ParkingProtocol)
    server = _Server(config)
    running = asyncio.create_task(server.serve())
    await server.has_begun.wait()
    try:
        yield purgatory
    finally:
        if purgatory.is_open:
            await purgatory.drain()
        server.should_exit = True
        await running


@asynccontextmanager
async def parked(purgatory: Purgatory, key: str, count: int) -> AsyncIterator[None]:
    """Have the application itself wait on a key."""
    before = purgatory.parked
    tasks = [asyncio.create_task(purgatory.park(key, timeout=600)) for _ in range(count)]
    await until(lambda: purgatory.parked == before + count)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def sign_in(page: Page, token: str) -> None:
    await page.until("!!document.querySelector('#sign-in:not([hidden])')")
    await page.run(f"document.querySelector('#token').value = {token!r}")
    await page.run("document.querySelector('#sign-in button').click()")


async def opened(page: Page, port: int, token: str = ALL) -> None:
    await page.open(f"http://127.0.0.1:{port}/purgatory/dashboard")
    await sign_in(page, token)
    await page.until("document.querySelector('#state').dataset.state === 'live'")
    await page.until("!!document.querySelector('#tile-parked')")


async def show(page: Page, view: str) -> None:
    await page.run(f"location.hash = '#{view}'")
    await page.until(f"!!document.querySelector('[data-view={view.partition('?')[0]}]')")


async def text(page: Page, selector: str) -> str:
    found: str = await page.run(f"document.querySelector({selector!r}).textContent")
    return found


async def test_what_it_shows_under_load_is_the_statistics() -> None:
    """Each figure, once the load pauses: parked, keys, outcomes, timers, jobs, each key."""
    port = free_port()
    async with serving(port) as purgatory, browser() as page:
        await page.look(width=1280, height=900)
        await opened(page, port)

        async def load(number: int) -> None:
            for turn in range(20):
                await purgatory.park(f"k:{number}", timeout=0.001 if turn % 4 == 0 else 30)

        loading = [asyncio.create_task(load(number)) for number in range(50)]
        while not all(task.done() for task in loading):
            for number in range(50):
                await purgatory.fire(f"k:{number}")
            await asyncio.sleep(0.005)
        for delay in (900, 901, 902):
            await purgatory.defer("remind", delay=delay)
        async with parked(purgatory, "crowd", 321), parked(purgatory, "few", 12):
            statistics = purgatory.statistics()
            assert (statistics.parked, statistics.keys) == (333, 2)
            await page.until("document.querySelector('#tile-parked dd').textContent === '333'")
            await page.until("document.querySelector('#tile-keys dd').textContent === '2'")
            since = f"{statistics.fired:,} woken, {statistics.expired:,} expired, 0 cancelled"
            await page.until(
                f"document.querySelector('#parked-legend').textContent.endsWith('{since}')"
            )
            timers = purgatory.statistics().timers
            assert await text(page, "#wheel .total") == str(timers)
            levels = await page.run(
                "[...document.querySelectorAll('#wheel dd')].map((each) => +each.textContent)"
            )
            assert sum(levels) == timers
            await page.until(
                "document.querySelector('#job-states').textContent.startsWith('3 all3 wai')"
            )
            await show(page, "waits")
            rows = "[...document.querySelectorAll('#keys-table tbody tr')]"
            cells = "[...each.cells].slice(0, 2).map((cell) => cell.textContent)"
            shown = f"JSON.stringify({rows}.map((each) => {cells}))"
            await page.until(f'{shown} === \'[["crowd","321"],["few","12"]]\'')
            await show(page, "workers")
            assert "333 on 2 keys" in await text(page, "[data-view=workers]")
        assert page.errors == []


async def test_a_key_counts_once_however_many_workers_watch_it() -> None:
    """And of keys that workers do not list, it is said that some may be the same."""
    port = free_port()
    async with serving(port), browser() as page:
        await opened(page, port)
        script = """(async () => {
          const { countedKeys } = await import("/purgatory/dashboard/static/overview.js");
          const made = (names, count) => ({
            statistics: { keys: count },
            keys: [...names].map((key) => ({ key, waiting: 1, oldest_ms: 1 })),
          });
          const shown = (...workers) => Object.values(countedKeys(workers));
          return [
            shown(made("xyz", 3), made("xyw", 3)),
            shown(made("xyz", 3), made("xyw", 60)),
            shown(made("xyz", 70)),
          ];
        })()"""
        assert await page.run(script) == [[4, "4"], [61, "at most 61"], [70, "70"]]
        assert page.errors == []


async def test_a_rate_is_unknown_before_the_second_snapshot() -> None:
    """The first one of a worker has totals only; and one that is read again adds nothing."""
    port = free_port()
    async with serving(port), browser() as page:
        await opened(page, port)
        script = """(async () => {
          const { request } = await import("/purgatory/dashboard/static/service.js");
          const { note, points } = await import("/purgatory/dashboard/static/overview.js");
          const [worker] = (await request("dashboard/snapshot")).workers;
          return [0, 1, 1].map((second) => {
            const statistics = { ...worker.statistics, fired: 1000 + 50 * second };
            note({ workers: [{ ...worker, token: "t", statistics, at_ms: 1 + 1000 * second }] });
            return String(points.at(-1).of.t.fired);
          });
        })()"""
        assert await page.run(script) == ["NaN", "50", "50"]
        assert page.errors == []


async def test_a_key_with_10_000_waits_is_drawn_a_page_at_a_time() -> None:
    """What the browser draws is bounded, and so is how long it takes: it asks for one page."""
    port = free_port()
    async with serving(port) as purgatory, browser() as page:
        await page.look(width=1280, height=900)
        await opened(page, port)
        async with parked(purgatory, "crowd", 10_000), parked(purgatory, "other", 1):
            await show(page, "waits?key=other")
            rows = "document.querySelectorAll('#waits-table tbody tr').length"
            await page.until(f"{rows} === 1")
            # What it asks for by itself does not count.
            await page.run("document.querySelector('.check input').click()")
            elements = "document.querySelectorAll('*').length"
            asked = (
                "performance.getEntriesByType('resource')"
                ".filter(e => /waits.*crowd/.test(e.name)).length"
            )
            before = await page.run(elements)
            await page.run("location.hash = '#waits?key=crowd'")
            await page.until(f"{rows} === 50")
            # Rows, and what is in them: about 20 elements each.
            assert await page.run(elements) - before < 50 * 20
            assert await page.run(asked) == 1
            assert "50 on this page" in await text(page, "[data-view=waits]")
            await page.run("document.querySelector('.row a:last-child').click()")
            await page.until(f"/after=/.test(location.hash) && {rows} === 50")
            await page.until("document.querySelector('.row a').textContent === 'First page'")
        assert page.errors == []


async def test_a_lost_connection_a_restart_and_the_way_back() -> None:
    """A sentence and a button; when the server is there again, the page goes on by itself."""
    port = free_port()
    async with browser() as page, AsyncExitStack() as stack:
        await stack.enter_async_context(serving(port))
        await opened(page, port)
        await stack.aclose()
        await page.until("!!document.querySelector('#trouble')")
        said = await text(page, "#trouble p")
        assert "shutting down" in said or "connection to the server is lost" in said
        assert "What you see is from" in said and "Trying again in" in said
        assert await text(page, "#state") == "Not live"
        async with serving(port) as purgatory, parked(purgatory, "after", 7):
            await page.run("document.querySelector('#trouble button').click()")
            await page.until("document.querySelector('#state').dataset.state === 'live'")
            assert await page.run("!document.querySelector('#trouble')")
            await page.until("document.querySelector('#tile-parked dd').textContent === '7'")
        # The token is no longer known: the page asks for another one.
        async with serving(port, "another-token-altogether *"):
            await page.until("!document.querySelector('#sign-in').hidden")
            assert "not known here" in await text(page, "#sign-in-why")


@pytest.mark.parametrize(
    ("status", "challenge", "takes_token"),
    [(401, None, False), (401, {"WWW-Authenticate": "Bearer"}, True), (403, None, False)],
)
async def test_who_is_refused_by_the_application_reads_its_words(
    status: int, challenge: dict[str, str] | None, takes_token: bool
) -> None:
    """Nothing of scopes, and of tokens only if it takes them; as when a session ends."""

    async def authorize(request: Request) -> None:
        if request.url.path.endswith("/snapshot"):
            raise HTTPException(status, "log in with the company's account", challenge)

    port = free_port()
    async with serving(port, authorize=authorize), browser() as page:
        await page.open(f"http://127.0.0.1:{port}/purgatory/dashboard")
        await page.until("!!document.querySelector('#sign-in:not([hidden])')")
        said = await text(page, "#sign-in-why")
        assert "log in with the company's account" in said and "scope" not in said
        assert await page.run("!document.querySelector('#sign-in-fields').hidden") is takes_token


async def test_without_permission() -> None:
    """A sentence that names the scope; who may only look is shown no button that acts."""
    port = free_port()
    async with serving(port) as purgatory, browser() as page:
        await page.open(f"http://127.0.0.1:{port}/purgatory/dashboard")
        await sign_in(page, "no-token-of-anyone")
        await page.until("document.querySelector('#sign-in-why').textContent.includes('not known')")
        await sign_in(page, WAITER)
        await page.until("document.querySelector('#sign-in-why').textContent.includes('observe')")
        assert await page.run("sessionStorage.length") == 0
        job = await purgatory.defer("remind", delay=900)
        async with parked(purgatory, "a", 3):
            await sign_in(page, OBSERVER)
            await page.until("document.querySelector('#state').dataset.state === 'live'")
            assert await page.run("!document.querySelector('#role').hidden")
            assert await page.run("[sessionStorage.length, localStorage.length]") == [1, 0]
            for view in ("waits", "jobs"):
                await show(page, view)
                await page.until(f"!!document.querySelector('#{view}-table tbody tr')")
                buttons = "[...document.querySelectorAll('main button')]"
                visible = f"{buttons}.filter((each) => each.offsetParent).map((each) => each.title)"
                # Of each job, and to apply the filter.
                assert [each for each in await page.run(visible) if each] == (
                    [job.id] if view == "jobs" else []
                )
                assert await page.run(f"{buttons}.length") == (3 if view == "jobs" else 2)
                assert await page.run("!document.querySelector('main td input')")
        assert page.errors == []


async def test_waits_are_fired_and_cancelled_by_keyboard(caplog: pytest.LogCaptureFixture) -> None:
    """Also several at once; each is in the audit log."""
    port = free_port()
    caplog.set_level(logging.INFO, "purgatory.audit")
    async with serving(port) as purgatory, browser() as page:
        await page.look(width=1280, height=900)
        await opened(page, port)
        async with parked(purgatory, "a", 3), parked(purgatory, "b", 2):
            await show(page, "waits")
            button = "document.querySelector('[aria-label=\"Fire a\"]')"
            await page.until(f"!!{button}")
            await page.run(f"{button}.focus()")
            await page.press("Enter", 13)
            await page.until("document.querySelector('dialog').open")
            await page.run("document.querySelector('dialog textarea').value = '{\"by\": 1}'")
            await page.run("document.querySelector('dialog .primary').focus()")
            await page.press("Enter", 13)
            await until(lambda: purgatory.parked == 2)
            await page.until("document.querySelectorAll('#waits-table tbody tr').length === 2")
            await page.run("document.querySelector('#waits-table thead input').click()")
            await page.run("document.querySelector('.bulk button').click()")
            await page.until("document.querySelector('dialog').open")
            await page.run("document.querySelector('dialog .danger').click()")
            await until(lambda: purgatory.parked == 0)
        job = await purgatory.defer("remind", delay=900)
        await show(page, "jobs")
        await page.until("!!document.querySelector('#jobs-table tbody button')")
        await page.run("document.querySelector('#jobs-table tbody button').click()")
        await page.until("document.querySelector('dialog').open")
        await page.run("document.querySelector('dialog [value=run-job]').click()")
        await job.wait()
        assert page.errors == []
    lines = [each.getMessage() for each in caplog.records if each.name == "purgatory.audit"]
    assert [line.split()[1] for line in lines] == ["fire", "cancel-wait", "cancel-wait", "run-job"]


async def test_what_has_the_focus_keeps_it_while_rows_come_and_go() -> None:
    """And is text, whatever a key is called."""
    port, key = free_port(), "<img src=x onerror=alert(1)>"
    async with serving(port) as purgatory, browser() as page:
        await opened(page, port)
        rows = "[...document.querySelectorAll('#keys-table tbody tr')]"
        names = f"{rows}.map((row) => row.cells[0].textContent).join(' ')"
        async with parked(purgatory, key, 2):
            await show(page, "waits")
            await page.until(f"{names} === {key!r}")
            await page.run("document.querySelector('#keys-table button').focus()")
            async with parked(purgatory, "a", 3), parked(purgatory, "b", 1):
                await page.until(f"{names} === 'a {key} b'")
            await page.until(f"{names} === {key!r}")
            focused = await page.run("document.activeElement.getAttribute('aria-label')")
            assert focused == f"Fire {key}"
        assert page.errors == []


async def test_a_pause_is_shown_until_it_is_resumed() -> None:
    """A banner with a button in Overview and Jobs; pausing asks for the handler in a dialog."""
    port = free_port()
    async with serving(port) as purgatory, browser() as page:
        await page.look(width=1280, height=900)
        await page.open(f"http://127.0.0.1:{port}/purgatory/dashboard")
        await page.until("!!document.querySelector('#sign-in:not([hidden])')")
        assert await page.run("document.querySelector('#worker').offsetParent === null")
        await sign_in(page, ALL)
        await show(page, "jobs")
        await page.run("document.querySelector('#pause-handler').click()")
        await page.until("document.querySelector('dialog').open")
        await page.run("document.querySelector('dialog input').value = 'remind'")
        await page.run("document.querySelector('dialog [type=button]').click()")
        await page.until("!document.querySelector('dialog').open")
        assert not (await purgatory.jobs.paused()).handlers
        await page.run("document.querySelector('#pause-handler').click()")
        await page.run("document.querySelector('dialog input').value = 'remind'")
        await page.run("document.querySelector('dialog input').focus()")
        await page.press("Enter", 13)
        banner = "document.querySelector('#paused span')?.textContent"
        await page.until(f"{banner} === 'Paused: remind (0 due)'")
        job = await purgatory.defer("remind", delay=0)
        await until_blocked(purgatory)
        await purgatory.jobs.pause()
        await show(page, "overview")
        await page.until(f"{banner} === 'All handlers are paused (1 due). By name: remind'")
        await page.run("document.querySelector('#paused button').click()")
        await page.until(f"{banner} === 'Paused: remind (1 due)'")
        await page.run("document.querySelector('#paused button').click()")
        await page.until("!document.querySelector('#paused')")
        await job.wait()
        assert page.errors == []


async def until_blocked(purgatory: Purgatory) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not (await purgatory.jobs.paused()).jobs:  # noqa: ASYNC110 - stored, not signalled
            await asyncio.sleep(0.01)


async def test_the_list_of_jobs_says_when_they_are_due_and_what_blocks_them() -> None:
    """A job that was cancelled an hour before has its due time, a blocked one what blocks it."""
    port, is_over = free_port(), asyncio.Event()
    async with serving(port) as purgatory, browser() as page:

        @purgatory.handler("charge", max_running_per_key=1)
        @purgatory.handler("mail", max_running=1)
        async def hold(job: JobContext) -> None:
            await is_over.wait()

        cancelled = await purgatory.defer("remind", delay=3600)
        await cancelled.cancel()
        await purgatory.jobs.pause("remind")
        paused = await purgatory.defer("remind", delay=0)
        await until_blocked(purgatory)
        jobs = [
            await purgatory.defer(handler, delay=0, concurrency_key="customer:7")
            for handler in ("charge", "mail", "charge", "mail")
        ]
        await page.look(width=1280, height=900)
        await opened(page, port)
        await show(page, "jobs")
        cell = "(row, label) => row.querySelector(`[data-label=${label}]`).textContent"
        script = f"""(() => {{ const cell = {cell};
          return [...document.querySelectorAll('#jobs-table tbody tr')].map((row) =>
            ["Handler", "State", "Due", "Finished"].map((label) => cell(row, label))); }})()"""
        await page.until(f"{script}.filter((row) => row[1].startsWith('blocked')).length === 2")
        rows = {(handler, state): times for handler, state, *times in await page.run(script)}
        assert set(rows) == {
            ("remind", "cancelled"),
            ("remind", "paused"),
            ("charge", "running"),
            ("charge", "blocked by key"),
            ("mail", "running"),
            ("mail", "blocked by handler"),
        }
        due, finished = rows["remind", "cancelled"]
        assert due.startswith(("in 59 min", "in 58 min")) and finished.endswith(" ago")
        due, finished = rows["charge", "blocked by key"]
        assert due.endswith(" overdue") and finished == "\u2013"
        due, finished = rows["mail", "running"]
        assert due.endswith(" ago") and finished == "\u2013"
        chip = "document.querySelector('#job-states [href$=blocked]')"
        await page.until(f"{chip}.textContent === '3 blocked'")
        await page.run(f"{chip}.click()")
        await page.until(f"{script}.length === 3")
        states = {state for _, state, *_ in await page.run(script)}
        assert states == {"paused", "blocked by key", "blocked by handler"}
        is_over.set()
        await purgatory.jobs.resume("remind")
        for job in (*jobs, paused):
            await job.wait()
        assert page.errors == []


async def test_periodic_jobs_have_a_list_of_their_own() -> None:
    """The next run of each; other jobs of the handler are not in it."""
    port, rows = free_port(), "document.querySelectorAll('#jobs-table tbody tr')"
    async with serving(port) as purgatory, browser() as page:
        purgatory.periodic("sweep", every=3600)(lambda job: None)
        await purgatory.defer("sweep", delay=900)
        await opened(page, port)
        await show(page, "jobs")
        await page.until(f"{rows}.length === 2")
        await page.run("document.querySelector('#job-states [href$=periodic]').click()")
        await page.until(f"{rows}.length === 1")


async def test_a_dialog_does_not_stay_over_another_view() -> None:
    """Whether one goes back or the job comes late; and an action that was asked is not done."""
    port = free_port()
    async with serving(port) as purgatory, browser() as page:
        await purgatory.defer("remind", delay=900)
        await opened(page, port)
        await show(page, "jobs")
        link = "document.querySelector('#jobs-table tbody button')"
        await page.until(f"!!{link}")
        await page.run(f"{link}.click()")
        await page.until("document.querySelector('dialog').open")
        await page.run("history.back()")
        await page.until("!!document.querySelector('[data-view=overview]')")
        await page.until("!document.querySelector('dialog[open]')")
        await show(page, "jobs")
        await page.run("document.querySelector('#pause-handler').click()")
        await page.run("document.querySelector('dialog input').value = 'remind'")
        await show(page, "workers")
        await page.until("!document.querySelector('dialog[open]')")
        # Its details are asked for, and come when another view is shown.
        await show(page, "jobs")
        asked = "performance.getEntriesByType('resource').filter((of) => /jobs\\/./.test(of.name))"
        before = await page.run(f"{asked}.length")
        await page.run(f"{link}.click(), location.hash = '#waits'")
        await page.until(f"{asked}.length > {before}")
        await page.run("new Promise((done) => setTimeout(done))")
        assert await page.run("document.querySelectorAll('dialog[open]').length") == 0
        assert not (await purgatory.jobs.paused()).handlers
        assert page.errors == []


async def test_a_key_on_a_narrow_screen_has_its_numbers_on_one_line() -> None:
    """How many wait, and for how long."""
    port = free_port()
    async with serving(port) as purgatory, browser() as page:
        await page.look(width=390, height=844)
        await opened(page, port)
        async with parked(purgatory, "order:42:paid", 1):
            await show(page, "waits")
            cells = "[...document.querySelectorAll('#keys-table td.number')]"
            await page.until(f"{cells}.length === 2")
            tops = f"new Set({cells}.map((each) => each.getBoundingClientRect().top)).size"
            assert await page.run(tops) == 1


@pytest.mark.parametrize(("width", "is_dark"), SCREENS)
async def test_axe_finds_nothing_serious(width: int, is_dark: bool) -> None:
    """In every view and dialog; nothing is wider than the screen, or begins below its top.

    A narrow screen has no lines for what is not known of a job or a wait.
    """
    axe = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    port = free_port()
    async with serving(port) as purgatory, browser() as page:
        await page.look(width=width, height=844, is_dark=is_dark)
        await page.open(f"http://127.0.0.1:{port}/purgatory/dashboard")
        await page.until("!!document.querySelector('#sign-in:not([hidden])')")
        await page.run(f"{axe}\n;0")
        found: dict[str, Any] = {"sign-in": await _violations(page)}
        await purgatory.defer("remind", delay=900, keys=["order:42:paid"])
        async with parked(purgatory, "order:42:paid", 5), parked(purgatory, "k" * 200, 2):
            await sign_in(page, ALL)
            await page.until("!!document.querySelector('#tile-parked')")
            for view in VIEWS:
                await show(page, view)
                if view == "jobs":
                    await page.until("!!document.querySelector('#jobs-table tbody tr')")
                found[view] = await _violations(page)
                wide = await page.run("document.documentElement.scrollWidth")
                assert wide <= width, (view, wide)
                await page.run(f"document.querySelector('#views a[href=\"#{view}\"]').click()")
                await page.run(
                    "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
                )
                assert await page.run("scrollY") == 0, view
                empty = "[...document.querySelectorAll('td')].filter((each) => each.offsetParent"
                empty += " && each.textContent === '\u2013').length"
                assert width > 390 or not await page.run(empty), view
            await show(page, "jobs")
            await page.run("document.querySelector('#jobs-table tbody button').click()")
            await page.until("document.querySelector('dialog').open")
            found["dialog"] = await _violations(page)
        assert {view: each for view, each in found.items() if each} == {}


async def _violations(page: Page) -> list[str]:
    found: list[str] = await page.run(
        "axe.run(document, {resultTypes: ['violations']}).then((all) => all.violations"
        ".filter((each) => each.impact === 'serious' || each.impact === 'critical')"
        ".map((each) => `${each.id}: ${each.nodes.map((node) => node.html).slice(0, 3)}`))"
    )
    return found
