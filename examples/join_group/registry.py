"""The groups of a coordinator."""

from __future__ import annotations

from collections.abc import Callable

from examples.join_group.errors import TooManyGroups, UnknownGroup
from examples.join_group.group import Group, unknown_member
from examples.join_group.member import Member


class GroupRegistry:
    """Groups by id, limited in number; a group exists from its first member until it expires."""

    def __init__(self, max_groups: int, epoch_of: Callable[[str], int]) -> None:
        """Allow at most `max_groups`, each created under the fencing epoch of its id."""
        self._max_groups = max_groups
        self._epoch_of = epoch_of
        self._groups: dict[str, Group] = {}

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    def __contains__(self, group_id: str) -> bool:
        """Return True iff there is a group of this id."""
        return group_id in self._groups

    def get(self, group_id: str) -> Group:
        """Return a group; raise UnknownGroup."""
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownGroup(f"there is no group {group_id}: its first member creates it")
        return group

    def find(self, group_id: str, member_id: str) -> tuple[Group, Member]:
        """Return a member and its group; raise UnknownMemberId, also for an unknown group."""
        group = self._groups.get(group_id)
        if group is None:
            raise unknown_member(group_id, member_id)
        return group, group.member(member_id)

    def get_or_new(self, group_id: str) -> Group:
        """Return a group, or a new one that is not registered yet; raise TooManyGroups."""
        group = self._groups.get(group_id)
        if group is not None:
            return group
        if len(self._groups) >= self._max_groups:
            raise TooManyGroups(
                f"there are {self._max_groups} groups, which is the limit: join one of them, or "
                "try again when one has expired",
                members={"maximum": self._max_groups},
            )
        return Group(group_id, self._epoch_of(group_id))

    def add(self, group: Group) -> None:
        """Register `group`, which now has a member."""
        self._groups[group.group_id] = group

    def remove(self, group: Group) -> None:
        """Remove `group`, which has expired or belongs to another worker."""
        del self._groups[group.group_id]
