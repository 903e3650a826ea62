"""The errors of the coordinator; each is a kind of problem details (RFC 9457).

    GroupError
    +-- UnknownGroup                404  the group does not exist
    +-- UnknownMemberId             404  not a member, or no longer one: join without member_id
    +-- IllegalGeneration           409  the generation has passed: join again
    +-- RebalanceInProgress         409  the group waits for its members: join again
    +-- InconsistentGroupProtocol   409  no protocol that every member supports
    +-- GroupFull                   409  too many members
    +-- JoinSuperseded              409  a newer request of the same member replaced this one
    +-- NotLeader                   403  only the leader may assign
    +-- InvalidAssignment           422  the leader's assignment is missing, or has unknown members
    +-- InvalidSessionTimeout       422  outside the limits of the coordinator
    +-- InvalidRebalanceTimeout     422  outside the limits of the coordinator
    +-- Unavailable                      try again after Retry-After seconds
        +-- TooManyGroups           503  too many groups
        +-- CoordinatorDraining     503  the coordinator is shutting down
        +-- NotCoordinator          503  this worker no longer owns the group
        +-- CoordinatorNotAvailable 503  no worker owns the group now

The class docstring is the title of the problem; the text of the instance is its detail.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar


class GroupError(Exception):
    """A request to the coordinator failed."""

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
        """Keep the text (value, limit, what to do), and members for programs."""
        super().__init__(detail)
        self.detail = detail
        self.members = dict(members or {})
        self.headers = dict(headers or {})

    @classmethod
    def title(cls) -> str:
        """Return the name of this kind of problem."""
        return (cls.__doc__ or "").strip().rstrip(".")


class UnknownGroup(GroupError):
    """The group does not exist."""

    slug = "unknown-group"
    status = 404
    remedy = "Join it without a member_id, which creates it."


class UnknownMemberId(GroupError):
    """The group has no such member."""

    slug = "unknown-member-id"
    status = 404
    remedy = "Discard the id and join again without one; the response has a new one."


class IllegalGeneration(GroupError):
    """The group is at another generation."""

    slug = "illegal-generation"
    status = 409
    remedy = "Stop processing the partitions of that generation, and join again with the same id."


class RebalanceInProgress(GroupError):
    """The group is waiting for its members to join."""

    slug = "rebalance-in-progress"
    status = 409
    remedy = "Join again with the same id, before the rebalance timeout."


class InconsistentGroupProtocol(GroupError):
    """No protocol is supported by every member."""

    slug = "inconsistent-group-protocol"
    status = 409
    remedy = "Support a protocol in `supported`, with the protocol_type of the group."


class GroupFull(GroupError):
    """The group is full."""

    slug = "group-full"
    status = 409
    remedy = "Wait until a member leaves; operators can raise max_group_size."


class JoinSuperseded(GroupError):
    """A newer request of the same member replaced this one."""

    slug = "superseded"
    status = 409
    remedy = "None is needed if that request was yours: the newest request gets the response."


class NotLeader(GroupError):
    """Only the leader of the generation may assign."""

    slug = "not-leader"
    status = 403
    remedy = "Sync without assignments: those of the leader apply."


class InvalidAssignment(GroupError):
    """The leader's assignment is missing, or contains unknown members."""

    slug = "invalid-assignment"
    status = 422
    remedy = "Assign only to the members in the response to the join."


class InvalidSessionTimeout(GroupError):
    """The session timeout is outside the limits."""

    slug = "invalid-session-timeout"
    status = 422
    remedy = "Join with a session_timeout between `minimum` and `maximum` seconds."


class InvalidRebalanceTimeout(GroupError):
    """The rebalance timeout is outside the limits."""

    slug = "invalid-rebalance-timeout"
    status = 422
    remedy = "Join with a rebalance_timeout of at most `maximum` seconds."


class Unavailable(GroupError):
    """The coordinator is temporarily unavailable."""

    status = 503

    def __init__(
        self,
        detail: str,
        *,
        members: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Like GroupError, with a random Retry-After to spread the clients."""
        after = {"Retry-After": str(random.randint(1, 5))}
        super().__init__(detail, members=members, headers={**after, **(headers or {})})


class TooManyGroups(Unavailable):
    """The coordinator has reached its limit of groups."""

    slug = "too-many-groups"
    remedy = "Try again after `Retry-After` seconds; operators can raise max_groups."


class CoordinatorDraining(Unavailable):
    """The coordinator is shutting down."""

    slug = "coordinator-draining"
    remedy = "Join again after `Retry-After` seconds at its successor."


class NotCoordinator(Unavailable):
    """This worker no longer owns the group."""

    slug = "not-coordinator"
    remedy = "Repeat the request at any worker, a join with the same member_id."


class CoordinatorNotAvailable(Unavailable):
    """No worker owns the group at the moment."""

    slug = "coordinator-not-available"
    remedy = "Repeat the request after `Retry-After` seconds, at any worker."


class OwnedElsewhere(Exception):
    """Another worker owns the group: the client is redirected to it."""

    def __init__(self, address: str) -> None:
        """Redirect to `address`."""
        super().__init__(address)
        self.address = address
