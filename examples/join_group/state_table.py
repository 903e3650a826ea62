"""The states of a group and their transitions (Kafka: GroupState)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class GroupState(StrEnum):
    """The state of a group."""

    EMPTY = "empty"
    """It has no members."""
    PREPARING_REBALANCE = "preparing-rebalance"
    """It is waiting for its members to join: DelayedJoin."""
    COMPLETING_REBALANCE = "completing-rebalance"
    """It has a generation and is waiting for the leader's assignment: DelayedSync."""
    STABLE = "stable"
    """The partitions of every member are assigned."""
    DEAD = "dead"
    """It has expired, after it was empty for too long; or another worker may own it."""


class GroupEvent(StrEnum):
    """An event that changes the state of a group."""

    REBALANCE_NEEDED = "rebalance-needed"
    """A member joined, left, or changed its protocols."""
    MEMBERS_JOINED = "members-joined"
    """The join phase ended with members."""
    NOBODY_JOINED = "nobody-joined"
    """The join phase ended without members."""
    ASSIGNED = "assigned"
    """The leader assigned the partitions."""
    EXPIRED = "expired"
    """No member joined an empty group in time."""
    OWNERSHIP_LOST = "ownership-lost"
    """Another worker may own the group now."""


TRANSITIONS: Final[dict[GroupState, dict[GroupEvent, GroupState]]] = {
    GroupState.EMPTY: {
        GroupEvent.REBALANCE_NEEDED: GroupState.PREPARING_REBALANCE,
        GroupEvent.EXPIRED: GroupState.DEAD,
        GroupEvent.OWNERSHIP_LOST: GroupState.DEAD,
    },
    GroupState.PREPARING_REBALANCE: {
        GroupEvent.MEMBERS_JOINED: GroupState.COMPLETING_REBALANCE,
        GroupEvent.NOBODY_JOINED: GroupState.EMPTY,
        GroupEvent.OWNERSHIP_LOST: GroupState.DEAD,
    },
    GroupState.COMPLETING_REBALANCE: {
        GroupEvent.ASSIGNED: GroupState.STABLE,
        GroupEvent.REBALANCE_NEEDED: GroupState.PREPARING_REBALANCE,
        GroupEvent.OWNERSHIP_LOST: GroupState.DEAD,
    },
    GroupState.STABLE: {
        GroupEvent.REBALANCE_NEEDED: GroupState.PREPARING_REBALANCE,
        GroupEvent.OWNERSHIP_LOST: GroupState.DEAD,
    },
    GroupState.DEAD: {},
}


def is_allowed(state: GroupState, event: GroupEvent) -> bool:
    """Return True iff `event` is allowed in `state`."""
    return event in TRANSITIONS[state]


def next_state(state: GroupState, event: GroupEvent) -> GroupState:
    """Return the state after `event`; raise RuntimeError if it is not allowed."""
    if not is_allowed(state, event):
        allowed = ", ".join(TRANSITIONS[state]) or "nothing"
        raise RuntimeError(
            f"{event} is not allowed for a group that is {state}; allowed: {allowed}"
        )
    return TRANSITIONS[state][event]
