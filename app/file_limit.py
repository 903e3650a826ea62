"""The limit on open files: each parked request holds a file descriptor."""

from __future__ import annotations

import resource

# For listening sockets, logs and the event loop.
RESERVED = 64


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit; return the new soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        # macOS reports no hard limit but enforces one.
        return soft
    return wanted


def shortage(files: int, max_parked: int) -> str | None:
    """Return a warning if `files` are too few for `max_parked` requests, else None."""
    if files >= max_parked + RESERVED:
        return None
    return (
        f"the limit of open files is {files}, enough for about {max(0, files - RESERVED)} parked "
        f"requests, not for {max_parked}: raise the hard limit (ulimit -Hn, or LimitNOFILE= of a "
        "systemd unit), or lower PURGATORY_MAX_PARKED"
    )
