"""Whether a server keeps the records of leases."""

from __future__ import annotations

from collections.abc import Mapping

# The first in which scripts are replicated by their effects without asking for it everywhere.
_OLDEST = (6, 2)


def faults(info: Mapping[str, object]) -> list[str]:
    """Return what is wrong with a server, by its INFO; a sentence each."""
    found = []
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _OLDEST:
        found.append(f"the server is Redis {version}: leases need Redis 6.2 or Valkey; upgrade it")
    if info.get("role") == "slave":
        found.append("the server is a replica, which takes no writes: connect to its primary")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.append(
            f"maxmemory-policy is {policy}, which evicts leases and their state when memory is "
            "full: set it to noeviction, and give leases a server that is no cache"
        )
    return found


def warnings(info: Mapping[str, object]) -> list[str]:
    """Return what may lose committed state, by the server's INFO; a sentence each."""
    if info.get("aof_enabled") not in (0, "0"):
        return []
    return ["appendonly is no: a crash of the server loses leases and states; set it to yes"]
