"""The keys that the operations of a group watch; ids hold no colon."""

from __future__ import annotations


def join_key(group_id: str) -> str:
    """Return the key of DelayedJoin and DelayedOblivion."""
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
