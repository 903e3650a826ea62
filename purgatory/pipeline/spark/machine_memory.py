"""How much memory there is."""

from __future__ import annotations

import os
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")
# In the second version of control groups, and in the first.
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def machine_memory(group: Path = _GROUP) -> int | None:
    """Return the bytes of this machine, or of the container that `group` limits; None if unknown.

    A container shows the machine's memory as its own, and kills who takes more than its limit.
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
        # Else it is "max": there is none.
        if limit.isdigit():
            found.append(int(limit))
    return min(found)
