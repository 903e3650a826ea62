"""The queue of jobs that wait for the slots of their handler."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from purgatory.jobs.handlers.fair_slots import FairSlots, Lane, Shares

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """What waits for the slots of one handler.

    Round robin between owners, and between the hosts of an owner; first in, first out for one
    owner and host. Bounded, and shared by owners as the slots are.
    """

    # Invariant: len(_places) == the number of items in _owners; no dict or deque in it is empty.

    def __init__(self, slots: FairSlots, max_waiting: int) -> None:
        """Let up to `max_waiting` items wait for `slots`."""
        self._slots = slots
        self._places = Shares(max_waiting)
        self._owners: OrderedDict[str | None, OrderedDict[str, deque[Item]]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._places)

    def put(self, item: Item, lane: Lane) -> bool:
        """Let an item wait; return False if there is no room for another one of its owner."""
        if not self._places.has_room(lane.owner):
            return False
        self._places.take(lane.owner)
        hosts = self._owners.setdefault(lane.owner, OrderedDict())
        hosts.setdefault(lane.host, deque()).append(item)
        return True

    def take(self) -> Item | None:
        """Return the next item, with a slot that was taken for it; None if there is none."""
        for owner, hosts in self._owners.items():
            if not self._slots.has_room(owner):
                continue
            for host in hosts:
                if self._slots.try_take(owner, host):
                    # Ends both loops, which changing the dicts would break.
                    return self._pop(owner, host)
        return None

    def _pop(self, owner: str | None, host: str) -> Item:
        hosts = self._owners[owner]
        items = hosts[host]
        item = items.popleft()
        hosts.move_to_end(host)
        self._owners.move_to_end(owner)
        if not items:
            del hosts[host]
        if not hosts:
            del self._owners[owner]
        self._places.release(owner)
        return item
