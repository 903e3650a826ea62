"""A page in a real browser that a test works with, through Chromium's own protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.browser.chromium import CHROMIUM
from tests.patience import PATIENCE_S


class Page:
    """One tab. Commands go through a pipe, a JSON document with a zero byte behind it each."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session: str | None = None
        self.errors: list[str] = []
        """What the page has reported: exceptions, errors, violations of its policy."""

    async def listen(self) -> None:
        """Read replies and events, to the end."""
        while True:
            message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            if "id" in message:
                self._replies.pop(message["id"]).set_result(message)
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
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        reply = self._replies[self._number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(PATIENCE_S):
            answer = await reply
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def attach(self) -> None:
        """Open a tab."""
        made = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

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
async def browser(profile: Path) -> AsyncIterator[Page]:
    """Run Chromium with one tab, which reaches nothing but this machine."""
    assert CHROMIUM is not None, "Chromium is not installed"
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    arguments = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        "--remote-debugging-pipe",
    ]
    process = await asyncio.create_subprocess_exec(
        # Chromium reads commands from descriptor 3, and replies through 4. Not sh: dash knows no
        # descriptors above 9.
        "bash",
        "-c",
        f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}',
        CHROMIUM,
        *arguments,
        pass_fds=(their_in, their_out),
        stderr=asyncio.subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    receiving, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(our_in, "rb")
    )
    sending, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(our_out, "wb")
    )
    page = Page(reader, asyncio.StreamWriter(sending, protocol, None, loop))
    listening = asyncio.create_task(page.listen())
    try:
        await page.attach()
        yield page
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        process.kill()
        await process.wait()
        sending.close()
        receiving.close()
