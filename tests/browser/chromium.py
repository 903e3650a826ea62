"""A real browser that can reach nothing but this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# The same engine in a shell without windows takes half of the CPU.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ,
    reason="needs Chromium; .ci/run installs it, and CI fails without it",
)


@contextmanager
def start_browser(url: str, profile: Path) -> Iterator[None]:
    """Have a browser show the page, in real time, until the end."""
    command = chromium_command("--remote-debugging-port=0", url, profile=profile)
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield
        finally:
            # With the processes that it has started.
            os.killpg(process.pid, signal.SIGKILL)


def chromium_command(*arguments: str, profile: Path | str) -> list[str]:
    """Return what starts a browser without windows, which reaches nothing but this machine."""
    assert CHROMIUM is not None, "Chromium is not installed"
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
        # No name but this address leads anywhere: a page that needs the internet stays blank.
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    ]
    return [CHROMIUM, *options, *arguments]
