"""A service whose workers die, clients that fire, and clients that follow."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from purgatory.client import AsyncClient, Client
from tests.acceptance.process_server import ProcessServer, serve_workers
from tests.browser.chromium import CHROMIUM
from tests.browser.devtools import browser
from tests.event_source.node import NODE
from tests.patience import PATIENCE_S

WORKERS = 3
KEYS = ("a", "b/c", "d")
LAST = "last"
PAUSE_S = 0.02
# Of fires, and of workers: on a machine that is much too busy a storm lasts longer for them.
LEAST_FIRES = 12
LEAST_ENDS = 2
ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("follow.mjs")

# By a module of the page's own origin.
BROWSER_SCRIPT = """(async (keys) => {
  window.seen = Object.fromEntries(keys.map((key) => [key, []]));
  window.failure = null;
  try {
    const { follow } = await import("/purgatory/purgatory.js");
    for await (const { key, value } of follow("/purgatory", keys, { cursor: "0" })) {
      window.seen[key].push(value);
      if (keys.every((each) => window.seen[each].at(-1) === "last")) return;
    }
  } catch (error) {
    window.failure = String(error);
  }
})"""

# By the browser itself: it reconnects, and says where it was by Last-Event-ID.
EVENT_SOURCE_SCRIPT = """((keys) => {
  window.heard = Object.fromEntries(keys.map((key) => [key, []]));
  const query = keys.map((key) => `key=${encodeURIComponent(key)}`).join("&");
  const source = new EventSource(`/purgatory/watch?${query}&cursor=0`);
  source.addEventListener("signal", (event) => {
    const { key, value } = JSON.parse(event.data);
    window.heard[key].push(value);
    if (keys.every((each) => window.heard[each].at(-1) === "last")) source.close();
  });
  source.addEventListener("cursor-expired", () => { window.failure = "the cursor has expired"; });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) window.failure = "EventSource has given up";
  });
})"""

Seen = dict[str, list[object]]


@dataclass
class Report:
    """What was fired, what each client has seen, and what was done to the workers."""

    fired: Seen = field(default_factory=lambda: {key: [] for key in KEYS})
    seen: dict[str, Seen] = field(default_factory=dict)
    kills: int = 0
    drains: int = 0

    @property
    def faults(self) -> list[str]:
        """Clients that have not seen every signal once, in the order of its key."""
        return [
            f"{name} {key}: {_difference(self.fired[key], values)}"
            for name, seen in self.seen.items()
            for key, values in seen.items()
            if values != self.fired[key]
        ]

    def __str__(self) -> str:
        """Return the counts."""
        fired = sum(len(values) for values in self.fired.values())
        return (
            f"{fired} signals, {len(self.seen)} clients, {self.kills} kills, "
            f"{self.drains} drains, {len(self.faults)} faults"
        )


def _difference(fired: list[object], seen: list[object]) -> str:
    missing = [value for value in fired if value not in seen]
    return f"{len(seen)} of {len(fired)}, without {missing[:5]}, last {seen[-5:]}"


async def run_storm(seconds: float, folder: Path, seed: int = 17) -> Report:
    """Kill and drain workers for so many seconds; return what the clients have seen."""
    report = Report()
    with serve_workers(WORKERS, folder) as server:
        url = f"http://127.0.0.1:{server.address[1]}"
        following = [
            *(asyncio.create_task(_follow(report, url, f"async {n}", KEYS)) for n in range(3)),
            *(asyncio.create_task(_follow(report, url, f"async {key}", [key])) for key in KEYS),
            asyncio.create_task(_wait(report, url)),
            asyncio.create_task(asyncio.to_thread(_follow_in_thread, report, url)),
        ]
        if NODE is not None:
            following.append(asyncio.create_task(_follow_in_node(report, url)))
        if CHROMIUM is not None:
            following.append(asyncio.create_task(_follow_in_browser(report, server)))
        until = time.monotonic() + seconds
        chaos = asyncio.create_task(_kill(report, server, until, random.Random(seed)))
        async with AsyncClient(url, retry_for=PATIENCE_S) as client:
            number = 0
            while time.monotonic() < until or number < LEAST_FIRES:
                await _fire(report, client, KEYS[number % len(KEYS)], number)
                number += 1
                await asyncio.sleep(PAUSE_S)
            await chaos
            for key in KEYS:
                await _fire(report, client, key, LAST)
        await asyncio.wait_for(asyncio.gather(*following), PATIENCE_S)
    return report


async def _kill(report: Report, server: ProcessServer, until: float, choice: random.Random) -> None:
    ended: set[int] = set()
    while time.monotonic() < until or report.kills + report.drains < LEAST_ENDS:
        await asyncio.sleep(choice.uniform(0.3, 1.5))
        alive = [worker for worker in server.workers() if worker not in ended]
        # The supervisor needs a while for a new one: the service is never without.
        if len(alive) < 2:
            continue
        worker = choice.choice(alive)
        ended.add(worker)
        if choice.random() < 0.5:
            report.kills += 1
            os.kill(worker, signal.SIGKILL)
        else:
            report.drains += 1
            os.kill(worker, signal.SIGTERM)


async def _fire(report: Report, client: AsyncClient, key: str, value: object) -> None:
    await client.fire(key, value)
    report.fired[key].append(value)


async def _follow(report: Report, url: str, name: str, keys: Iterable[str]) -> None:
    seen = report.seen[name] = {key: [] for key in keys}
    async with AsyncClient(url) as client:
        async for found in client.follow(*seen, cursor="0"):
            seen[found.key].append(found.value)
            if _is_over(seen):
                return


def _follow_in_thread(report: Report, url: str) -> None:
    seen: Seen = {key: [] for key in KEYS}
    report.seen["sync"] = seen
    with Client(url) as client:
        for found in client.follow(*KEYS, cursor="0"):
            seen[found.key].append(found.value)
            if _is_over(seen):
                return


async def _wait(report: Report, url: str) -> None:
    """By long polls."""
    seen: Seen = {key: [] for key in KEYS}
    report.seen["waits"] = seen
    async with AsyncClient(url, retry_for=PATIENCE_S) as client:
        cursors: dict[str, str | None] = dict.fromkeys(KEYS, "0")
        while not _is_over(seen):
            result = await client.wait(*KEYS, timeout=5, cursor=cursors)
            cursors.update(result.cursors)
            for found in result.signals:
                seen[found.key].append(found.value)


async def _follow_in_node(report: Report, url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(SCRIPT), f"{url}/purgatory", *KEYS, stdout=asyncio.subprocess.PIPE
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    report.seen["node"] = json.loads(said)


async def _follow_in_browser(report: Report, server: ProcessServer) -> None:
    async with browser() as page:
        await page.open(f"http://127.0.0.1:{server.address[1]}/purgatory/dashboard")
        await page.until("document.readyState === 'complete'")
        # Not awaited: a reply of the browser may take as long as any other, and not a storm.
        await page.run(f"{BROWSER_SCRIPT}({json.dumps(KEYS)}); 0")
        await page.run(f"{EVENT_SOURCE_SCRIPT}({json.dumps(KEYS)}); 0")
        names = {"browser": "seen", "EventSource": "heard"}
        report.seen |= {name: {key: [] for key in KEYS} for name in names}
        while not all(_is_over(report.seen[name]) for name in names):
            await asyncio.sleep(PAUSE_S * 10)
            failure = await page.run("window.failure")
            # Which response made it give up is in the access log only.
            assert failure is None, [failure, *(each for each in server.log if "/watch?" in each)]
            report.seen |= {name: await page.run(f"window.{names[name]}") for name in names}


def _is_over(seen: Seen) -> bool:
    return all(values and values[-1] == LAST for values in seen.values())
