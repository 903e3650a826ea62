"""Every refusal of the coordinator, each a kind of problem of its own (RFC 9457).

    GroupError
    +-- UnknownGroup                404  nothing is known of the group
    +-- UnknownMemberId             404  not a member, or no longer: join without member_id
    +-- IllegalGeneration           409  the generation has passed: join again
    +-- RebalanceInProgress         409  the members are being gathered: join again
    +-- InconsistentGroupProtocol   409  no protocol that every member supports
    +-- GroupFull                   409  as many members as a group may have
    +-- JoinSuperseded              409  a newer request of the same member took this one's place
    +-- NotLeader                   403  only the leader assigns
    +-- InvalidAssignment           422  the leader's assignment is missing, or names strangers
    +-- InvalidSessionTimeout       422  outside the bounds of the coordinator
    +-- InvalidRebalanceTimeout     422  outside the bounds of the coordinator
    +-- Unavailable                      come back after Retry-After seconds
        +-- TooManyGroups           503  as many groups as the coordinator may keep
        +-- CoordinatorDraining     503  the coordinator is shutting down

The class docstring is the title of the problem; the instance's sentence is its detail.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar


class GroupError(Exception):
    """The coordinator refused a request."""

    slug: ClassVar[str]
    status: ClassVar[int]
    remedy: ClassVar[str]

    def __init__(
        self,
        detail: str,
        *,
        members: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take a sentence with the value, the limit and the way out, and members for programs."""
        super().__init__(detail)
        self.detail = detail
        self.members = dict(members or {})
        self.headers = dict(headers or {})

    @classmethod
    def title(cls) -> str:
        """Return what this kind of problem is called."""
        return (cls.__doc__ or "").strip().rstrip(".")


class UnknownGroup(GroupError):
    """Nothing is known of this group."""

    slug = "unknown-group"
    status = 404
    remedy = "Join it without a member_id: that makes it."


class UnknownMemberId(GroupError):
    """The group has no such member."""

    slug = "unknown-member-id"
    status = 404
    remedy = "Forget the id, and join again without one: a new one comes with the answer."


class IllegalGeneration(GroupError):
    """The group is at another generation."""

    slug = "illegal-generation"
    status = 409
    remedy = "Stop working on the partitions of that generation, and join again with the same id."


class RebalanceInProgress(GroupError):
    """The group is gathering its members."""

    slug = "rebalance-in-progress"
    status = 409
    remedy = "Join again with the same id, before the rebalance timeout."


class InconsistentGroupProtocol(GroupError):
    """There is no protocol that every member supports."""

    slug = "inconsistent-group-protocol"
    status = 409
    remedy = "Support a protocol of `supported`, of the same protocol_type as the group."


class GroupFull(GroupError):
    """The group has as many members as it may."""

    slug = "group-full"
    status = 409
    remedy = "Wait until a member leaves; operators can raise max_group_size."


class JoinSuperseded(GroupError):
    """A newer request of the same member took this one's place."""

    slug = "superseded"
    status = 409
    remedy = "Nothing, if that request was yours: the newest is the one that is answered."


class NotLeader(GroupError):
    """Only the leader of the generation assigns."""

    slug = "not-leader"
    status = 403
    remedy = "Sync without assignments: the leader's are handed out."


class InvalidAssignment(GroupError):
    """The leader's assignment is missing, or names those who are no members."""

    slug = "invalid-assignment"
    status = 422
    remedy = "Assign to the members that the answer to the join listed, and to no others."


class InvalidSessionTimeout(GroupError):
    """The session timeout is outside the bounds."""

    slug = "invalid-session-timeout"
    status = 422
    remedy = "Join with a session_timeout between `minimum` and `maximum` seconds."


class InvalidRebalanceTimeout(GroupError):
    """The rebalance timeout is outside the bounds."""

    slug = "invalid-rebalance-timeout"
    status = 422
    remedy = "Join with a rebalance_timeout of at most `maximum` seconds."


class Unavailable(GroupError):
    """The coordinator cannot help at the moment."""

    status = 503

    def __init__(
        self,
        detail: str,
        *,
        members: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take what GroupError takes. Retry-After is jittered: clients do not return in step."""
        after = {"Retry-After": str(random.randint(1, 5))}
        super().__init__(detail, members=members, headers={**after, **(headers or {})})


class TooManyGroups(Unavailable):
    """The coordinator keeps as many groups as it may."""

    slug = "too-many-groups"
    remedy = "Try again after `Retry-After` seconds; operators can raise max_groups."


class CoordinatorDraining(Unavailable):
    """The coordinator is shutting down."""

    slug = "coordinator-draining"
    remedy = "Join again after `Retry-After` seconds: its successor answers."
