"""File descriptors: each parked request holds one."""

from __future__ import annotations

import resource

# Listening sockets, logs, the event loop's own.
SPARE = 64


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit; return how many it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        # macOS names no hard limit and has a lower one all the same.
        return soft
    return wanted


def shortage(files: int, max_parked: int) -> str | None:
    """Return a sentence if `files` are too few for `max_parked` requests, else None."""
    if files >= max_parked + SPARE:
        return None
    return (
        f"{files} files may be open, so about {max(0, files - SPARE)} requests can be parked, not "
        f"{max_parked}: raise the hard limit (ulimit -Hn, or LimitNOFILE= of a systemd unit), or "
        "lower PURGATORY_MAX_PARKED"
    )
