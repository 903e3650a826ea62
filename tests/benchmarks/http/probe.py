"""What a server says of itself."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

_STATM = Path("/proc/self/statm")


def probe(parked: int) -> dict[str, int]:
    """Return how many are parked, the CPU time of this process, and the memory it holds."""
    return {"parked": parked, "cpu_ns": time.process_time_ns(), "rss": _rss()}


def _rss() -> int:
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    shown = subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())], text=True)
    return int(shown) * 1024
