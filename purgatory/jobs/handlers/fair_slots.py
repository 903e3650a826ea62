"""Slots of a handler: how many of its jobs run at once, shared fairly, and who waits for one."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar


class Shares:
    """Slots that owners share, so that one that comes later finds some free.

    An owner takes no more slots than are left free: half of them if it is alone, a third if there
    are two. With a fixed share for each, slots would lie idle, or many owners would take them all.
    """

    # Invariant: free == _total - sum(_taken.values()), and all(_taken.values())

    __slots__ = ("_max_each", "_taken", "_total", "free")

    def __init__(self, total: int, max_each: int | None = None) -> None:
        """Share `total` slots, at most `max_each` for an owner."""
        self._total = self.free = total
        self._max_each = total if max_each is None else max_each
        self._taken: dict[str | None, int] = {}

    def __len__(self) -> int:
        """Return how many slots are taken."""
        return self._total - self.free

    def has_room(self, owner: str | None) -> bool:
        """Return True iff `owner` may take another slot."""
        return self._taken.get(owner, 0) < min(self._max_each, self.free)

    def take(self, owner: str | None) -> None:
        """Take a slot, whether there is room or not."""
        self._taken[owner] = self._taken.get(owner, 0) + 1
        self.free -= 1

    def release(self, owner: str | None) -> None:
        """Release a slot that was taken."""
        left = self._taken.pop(owner) - 1
        if left:
            self._taken[owner] = left
        self.free += 1


class FairSlots:
    """Slots of one handler, shared by owners, and by owners at each host that its jobs call.

    On one event loop. A job of an owner that has all its slots waits, though slots are free.
    """

    # Invariant: _hosts has a host iff one of its slots is taken.

    def __init__(self, total: int, *, per_owner: int, per_host: int) -> None:
        """Share `total` slots, at most `per_owner` for an owner, and `per_host` for a host."""
        self._per_host = per_host
        self._shares = Shares(total, per_owner)
        self._hosts: dict[str, Shares] = {}
        self.on_release: set[Callable[[], object]] = set()
        """Called after each release."""

    def has_room(self, owner: str | None) -> bool:
        """Return True iff `owner` may take another slot, at a host that has room for it."""
        return self._shares.has_room(owner)

    def try_take(self, owner: str | None, host: str) -> bool:
        """Take a slot; return False if there is none for this owner and host."""
        at_host = self._hosts.get(host)
        if not self.has_room(owner) or not (at_host is None or at_host.has_room(owner)):
            return False
        self.take(owner, host)
        return True

    def take(self, owner: str | None, host: str) -> None:
        """Take a slot, whether there is room or not."""
        self._shares.take(owner)
        if host not in self._hosts:
            self._hosts[host] = Shares(self._per_host)
        self._hosts[host].take(owner)

    def release(self, owner: str | None, host: str) -> None:
        """Release a slot that was taken, and call `on_release`."""
        self._shares.release(owner)
        self._hosts[host].release(owner)
        if self._hosts[host].free == self._per_host:
            del self._hosts[host]
        for listener in tuple(self.on_release):
            listener()


class Lane(NamedTuple):
    """Where a job waits for a slot: the slots of its handler, its owner, and the host it calls."""

    slots: FairSlots
    owner: str | None
    host: str

    def take(self) -> None:
        """Take a slot, whether there is room or not."""
        self.slots.take(self.owner, self.host)

    def release(self) -> None:
        """Release a slot that was taken."""
        self.slots.release(self.owner, self.host)


Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """What waits for the slots of one handler.

    Round robin between owners, and between the hosts of an owner; first in, first out for one
    owner and host. Bounded, and shared by owners as the slots are.
    """

    # Invariant: len(_waiting) == the number of items in _owners; no dict or deque in it is empty.

    def __init__(self, slots: FairSlots, max_waiting: int) -> None:
        """Let up to `max_waiting` items wait for `slots`."""
        self._slots = slots
        self._waiting = Shares(max_waiting)
        self._owners: OrderedDict[str | None, OrderedDict[str, deque[Item]]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._waiting)

    def put(self, item: Item, lane: Lane) -> bool:
        """Let an item wait; return False if there is no room for another one of its owner."""
        if not self._waiting.has_room(lane.owner):
            return False
        self._waiting.take(lane.owner)
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
        self._waiting.release(owner)
        return item
