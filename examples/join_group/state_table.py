"""The states of a group, what may happen in each, and what follows (Kafka: GroupState)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class GroupState(StrEnum):
    """What a group is doing."""

    EMPTY = "empty"
    """It has no members."""
    PREPARING_REBALANCE = "preparing-rebalance"
    """It waits for its members to join: DelayedJoin."""
    COMPLETING_REBALANCE = "completing-rebalance"
    """It has a generation, and waits for the leader's assignment: DelayedSync."""
    STABLE = "stable"
    """Every member has its partitions, or may fetch them."""
    DEAD = "dead"
    """It was empty for so long that it is forgotten."""


class GroupEvent(StrEnum):
    """What may happen to a group."""

    REBALANCE_NEEDED = "rebalance-needed"
    """A member came, left, or supports other protocols than before."""
    MEMBERS_JOINED = "members-joined"
    """The wait for joins is over, and there are members."""
    NOBODY_JOINED = "nobody-joined"
    """The wait for joins is over, and there is no member."""
    ASSIGNED = "assigned"
    """The leader said who gets what."""
    FORGOTTEN = "forgotten"
    """Nobody came back to an empty group."""


TRANSITIONS: Final[dict[GroupState, dict[GroupEvent, GroupState]]] = {
    GroupState.EMPTY: {
        GroupEvent.REBALANCE_NEEDED: GroupState.PREPARING_REBALANCE,
        GroupEvent.FORGOTTEN: GroupState.DEAD,
    },
    GroupState.PREPARING_REBALANCE: {
        GroupEvent.MEMBERS_JOINED: GroupState.COMPLETING_REBALANCE,
        GroupEvent.NOBODY_JOINED: GroupState.EMPTY,
    },
    GroupState.COMPLETING_REBALANCE: {
        GroupEvent.ASSIGNED: GroupState.STABLE,
        GroupEvent.REBALANCE_NEEDED: GroupState.PREPARING_REBALANCE,
    },
    GroupState.STABLE: {
        GroupEvent.REBALANCE_NEEDED: GroupState.PREPARING_REBALANCE,
    },
    GroupState.DEAD: {},
}


def is_allowed(state: GroupState, event: GroupEvent) -> bool:
    """Return True iff `event` may happen to a group in `state`."""
    return event in TRANSITIONS[state]


def next_state(state: GroupState, event: GroupEvent) -> GroupState:
    """Return the state after `event`; raise RuntimeError where it cannot happen."""
    if not is_allowed(state, event):
        allowed = ", ".join(TRANSITIONS[state]) or "nothing"
        raise RuntimeError(f"{event} cannot happen to a group that is {state}: {allowed} can")
    return TRANSITIONS[state][event]
