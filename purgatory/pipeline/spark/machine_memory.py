"""The memory of this machine or container."""

from __future__ import annotations

import os
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")
# Of cgroup v2 and v1.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def machine_memory(group: Path = _GROUP) -> int | None:
    """Return the bytes of this machine, or of the container that `group` limits; None if unknown.

    A container shows the machine's memory as its own, and kills a process that exceeds its limit.
    """
    try:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):
        return None  # As on Windows.
    for name in _LIMITS:
        try:
            limit = (group / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        # Otherwise it is "max": no limit.
        if limit.isdigit():
            found.append(int(limit))
    return min(found)
