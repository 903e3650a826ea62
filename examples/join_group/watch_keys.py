"""The watch keys of the operations of a group; ids contain no colon."""

from __future__ import annotations


def join_key(group_id: str) -> str:
    """Return the key of DelayedJoin and DelayedGroupExpiration."""
    return f"group:{group_id}:join"


def sync_key(group_id: str) -> str:
    """Return the key of DelayedSync."""
    return f"group:{group_id}:sync"


def heartbeat_key(group_id: str, member_id: str) -> str:
    """Return the key of DelayedHeartbeat."""
    return f"group:{group_id}:heartbeat:{member_id}"


def parked_key(group_id: str, member_id: str) -> str:
    """Return the key of the member's parked requests."""
    return f"group:{group_id}:parked:{member_id}"
