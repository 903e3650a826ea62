"""Assignment of the partitions of a topic to members (Kafka: RangeAssignor, RoundRobinAssignor)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

Assignor = Callable[[Sequence[str], int], dict[str, list[int]]]


def assign_ranges(member_ids: Sequence[str], partitions: int) -> dict[str, list[int]]:
    """Return a contiguous range for each member; the first members get one more if needed."""
    share, extra = divmod(partitions, len(member_ids))
    assignment = {}
    start = 0
    for position, member_id in enumerate(sorted(member_ids)):
        end = start + share + (position < extra)
        assignment[member_id] = list(range(start, end))
        start = end
    return assignment


def assign_round_robin(member_ids: Sequence[str], partitions: int) -> dict[str, list[int]]:
    """Return the partitions assigned one by one in turn."""
    ordered = sorted(member_ids)
    step = len(ordered)
    return {
        member_id: list(range(position, partitions, step))
        for position, member_id in enumerate(ordered)
    }


ASSIGNORS: Final[dict[str, Assignor]] = {"range": assign_ranges, "roundrobin": assign_round_robin}
