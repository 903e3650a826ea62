"""Write the client for threads from that for asyncio: `make format` calls this.

python .build/sync_client.py            write purgatory/client/sync_client.py
python .build/sync_client.py --check    fail if it is not current: `make lint`
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parent.parent / "purgatory" / "client"
SOURCE, TARGET = CLIENT / "async_client.py", CLIENT / "sync_client.py"

# In this order: what is part of a longer text comes after it.
REPLACED = {
    '"""The client for asyncio."""': '"""The client for threads, without an event loop.\n\n'
    "Made of `async_client.py` by `.build/sync_client.py`: change that, then `make format`.\n"
    '"""',
    "for one event loop: `async with AsyncClient(url)": "for any number of threads: "
    "`with Client(url)",
    # Nothing sets the event.
    "await asyncio.sleep(": "threading.Event().wait(",
    "import asyncio": "import threading",
    "Signal, None]": "Signal, None, None]",
    "Job, None]": "Job, None, None]",
    "AsyncGenerator[Any, None]": "AsyncGenerator[Any, None, None]",
    "AsyncGenerator": "Generator",
    "push_async_callback": "callback",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "AsyncClient": "Client",
    "AsyncExitStack": "ExitStack",
    "AsyncJobHandle": "JobHandle",
    "aclose": "close",
    "aiter_raw": "iter_raw",
    "anext": "next",
    "aread": "read",
    "async ": "",
    "await ": "",
}


def synchronous(text: str) -> str:
    """Return a module for asyncio as one for threads."""
    for old, new in REPLACED.items():
        text = text.replace(old, new)
    return text


def main(arguments: list[str]) -> None:
    """Write the module, or check it."""
    made = synchronous(SOURCE.read_text(encoding="utf-8"))
    formatted = subprocess.run(  # noqa: S603 # our own formatter, on our own text
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"],
        input=made,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if arguments != ["--check"]:
        TARGET.write_text(formatted, encoding="utf-8")
    elif TARGET.read_text(encoding="utf-8") != formatted:
        sys.exit(f"{TARGET.name} is not what {SOURCE.name} makes: run `make format`")


if __name__ == "__main__":
    main(sys.argv[1:])
