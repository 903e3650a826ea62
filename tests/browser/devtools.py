"""A page in a real browser that a test works with, through Chromium's own protocol."""

from __future__ import annotations

import asyncio
import atexit
import base64
import itertools
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import chromium_command
from tests.nightly import NIGHTLY
from tests.patience import PATIENCE_S

SCREENS = (
    pytest.param(1280, False, id="wide-light"),
    pytest.param(390, True, id="narrow-dark"),
    pytest.param(1280, True, id="wide-dark", marks=NIGHTLY),
    pytest.param(390, False, id="narrow-light", marks=NIGHTLY),
)
"""Widths, and whether the colours are dark: each is seen once by day."""

# Of commands, whichever page they are for: replies to an earlier page may still come.
_numbers = itertools.count(1)


class Chromium:
    """A browser without windows, for all tests of this process: its start takes a second of CPU.

    Commands go through a pipe, a JSON document with a zero byte behind it each. A page has a
    context of its own: cookies, storage and caches of others are not there.
    """

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(
            prefix="purgatory-chromium-", ignore_cleanup_errors=True
        )
        (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
        self._out = os.fdopen(our_out, "wb")
        options = ("--hide-scrollbars", "--remote-debugging-pipe")
        # Chromium reads commands from descriptor 3, and replies through 4. Not sh: dash knows no
        # descriptors above 9.
        program = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", program, *chromium_command(*options, profile=self._profile.name)],
            pass_fds=(their_in, their_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        self.receiver: Callable[[dict[str, Any]], None] | None = None
        """Called, in a thread, with what the browser says."""
        threading.Thread(target=self._read, args=(our_in,), daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """True iff it is not there any more."""
        return self._process.poll() is not None

    def send(self, message: dict[str, Any]) -> None:
        """Send a command."""
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()

    def end(self) -> None:
        """End it, and remove what it has written."""
        self._process.kill()
        self._process.wait()
        # What it has not read any more is of no interest.
        with suppress(BrokenPipeError):
            self._out.close()
        self._profile.cleanup()

    def _read(self, source: int) -> None:
        rest = b""
        with os.fdopen(source, "rb", buffering=0) as pipe:
            while read := pipe.read(1024 * 1024):
                *messages, rest = (rest + read).split(b"\0")
                for message in messages:
                    if (receiver := self.receiver) is not None:
                        receiver(json.loads(message))


_running: list[Chromium] = []


def _chromium() -> Chromium:
    if not _running or _running[-1].has_ended:
        _running.append(Chromium())
        atexit.register(_running[-1].end)
    return _running[-1]


class Page:
    """One tab, in a context of its own."""

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium
        self._loop = asyncio.get_running_loop()
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session: str | None = None
        self.errors: list[str] = []
        """What the page has reported: exceptions, errors, violations of its policy."""

    def receive(self, message: dict[str, Any]) -> None:
        """Take a message of the browser, in any thread."""
        try:
            self._loop.call_soon_threadsafe(self._handle, message)
        except RuntimeError:
            pass  # The last of a page that is closed, whose loop is, too.

    def _handle(self, message: dict[str, Any]) -> None:
        if "id" in message:
            if reply := self._replies.pop(message["id"], None):
                reply.set_result(message)
        elif message["method"] == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.errors.append(str(details.get("exception", details)))
        elif message["method"] == "Log.entryAdded":
            entry = message["params"]["entry"]
            # A response of 401 or a refused connection is what some tests are about.
            if entry["level"] == "error" and entry["source"] != "network":
                self.errors.append(entry["text"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Run a command of the protocol, and return its result."""
        number = next(_numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self._chromium.send(message)
        async with asyncio.timeout(PATIENCE_S):
            answer = await reply
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def attach(self) -> str:
        """Open the tab; return the id of its context."""
        context: str = (await self.call("Target.createBrowserContext"))["browserContextId"]
        made = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        return context

    async def close(self, context: str) -> None:
        """Close the tab, and forget what it has stored."""
        self._session = None
        await self.call("Target.disposeBrowserContext", browserContextId=context)

    async def open(self, url: str) -> None:
        """Go to an address."""
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """Return the value of an expression, which may be a promise."""
        found = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise AssertionError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true; return its value."""
        value = None

        async def is_true() -> bool:
            nonlocal value
            value = await self.run(script)
            return bool(value)

        async with asyncio.timeout(PATIENCE_S):
            # The page has no event for this that would reach here.
            while not await is_true():  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.05)
        return value

    async def look(self, *, width: int, height: int, is_dark: bool = False) -> None:
        """Show the page on a screen of that size and colour scheme."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, target: Path, *, is_whole: bool = True) -> None:
        """Write what is shown, or the whole page, to a PNG file."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)
        await asyncio.to_thread(target.write_bytes, base64.b64decode(shot["data"]))

    async def press(self, key: str, code: int) -> None:
        """Press a key: its name in the DOM and its Windows virtual code."""
        for kind in ("rawKeyDown", "char", "keyUp"):
            text = {"text": "\r"} if kind == "char" and key == "Enter" else {}
            if kind == "char" and not text:
                continue
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **text,
            )


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """Open a tab of Chromium, which reaches nothing but this machine."""
    chromium = _chromium()
    page = Page(chromium)
    chromium.receiver = page.receive
    try:
        context = await page.attach()
        try:
            yield page
        finally:
            # Else the error of the test is the one to see.
            if not chromium.has_ended:
                await page.close(context)
    finally:
        chromium.receiver = None
