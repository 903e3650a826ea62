"""The leases of this worker's groups, when it is one of several workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from examples.join_group.errors import CoordinatorNotAvailable, OwnedElsewhere
from examples.join_group.group import Group
from examples.join_group.stored_group import snapshot
from purgatory.ownership import Lease, LeaseLostError, Owner, Ownership, OwnershipUnavailableError

_ATTEMPTS = 3


class GroupLeases:
    """A worker owns a group while it has the group's lease; see `purgatory.ownership`.

    A generation is committed, with its members, before any of them learns of it. The next owner
    lets these members join again. What happens between two generations is in memory only.
    """

    def __init__(self, ownership: Ownership) -> None:
        """Use `ownership`, whose names are the ids of groups."""
        self.ownership = ownership
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """The address of this worker."""
        return self.ownership.address

    def on_lost(self, listener: Callable[[str], object]) -> None:
        """Call `listener(group_id)` when another worker may own a group of this one."""
        self.ownership.on_lost = lambda lease: listener(lease.name)

    def is_owned(self, group_id: str) -> bool:
        """Return True iff this worker owns the group now."""
        return self.ownership.lease(group_id) is not None

    def epoch(self, group_id: str) -> int:
        """Return the fencing epoch under which this worker owns the group."""
        lease = self.ownership.lease(group_id)
        if lease is None:
            raise self._not_available(group_id, "its lease has just ended")
        return lease.epoch

    async def own(self, group_id: str, *, creates: bool) -> Lease | None:
        """Return the valid lease of the group; None if there is no group, unless it `creates` one.

        Raises OwnedElsewhere, or CoordinatorNotAvailable if nobody can be found or become the
        owner now.
        """
        for _ in range(_ATTEMPTS):
            lease = self.ownership.lease(group_id) or await self._acquire(group_id, creates)
            # Not valid if the request for which it was acquired has failed, and released it.
            if lease is None or lease.is_valid:
                return lease
        raise self._not_available(group_id, "its lease has just ended")

    async def _acquire(self, group_id: str, creates: bool) -> Lease | None:
        try:
            if not creates:
                record = await self.ownership.read(group_id)
                if record.address is not None:
                    raise self._elsewhere(group_id, record.address)
                if record.state is None:
                    # Nothing is acquired for the ids that a client makes up.
                    return None
            found = await self.ownership.acquire(group_id)
        except OwnershipUnavailableError as exc:
            raise self._not_available(group_id, "Redis is out of reach") from exc
        if isinstance(found, Owner):
            raise self._elsewhere(group_id, found.address)
        return found

    def commit(self, group: Group, on_committed: Callable[[Group], object]) -> None:
        """Commit the next generation of `group`, then call `on_committed(group)`.

        If that fails, the lease is lost and `on_lost` was called.
        """
        self._begin(self._commit(group, on_committed))

    def forget(self, group: Group, on_forgotten: Callable[[], object]) -> None:
        """Remove the stored state of `group`, call `on_forgotten()`, and release the lease."""
        self._begin(self._forget(group, on_forgotten))

    async def release(self, group_id: str) -> None:
        """Release the lease of a group that this worker does not have."""
        lease = self.ownership.lease(group_id)
        if lease is not None:
            await self.ownership.release(lease)

    async def _commit(self, group: Group, on_committed: Callable[[Group], object]) -> None:
        lease = self.ownership.lease(group.group_id)
        if lease is None:
            return
        try:
            await self.ownership.commit(lease, snapshot(group))
        except LeaseLostError:
            return
        on_committed(group)

    async def _forget(self, group: Group, on_forgotten: Callable[[], object]) -> None:
        lease = self.ownership.lease(group.group_id)
        if lease is None:
            return
        try:
            await self.ownership.commit(lease, None)
        except LeaseLostError:
            return
        on_forgotten()
        await self.ownership.release(lease)

    def _begin(self, work: Coroutine[object, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _elsewhere(self, group_id: str, address: str) -> Exception:
        if address == self.address:
            # A redirect would come back here.
            return self._not_available(
                group_id,
                f"another process owns it at this worker's address {address}: it has died, or two "
                "workers have the same address",
            )
        return OwnedElsewhere(address)

    def _not_available(self, group_id: str, reason: str) -> CoordinatorNotAvailable:
        return CoordinatorNotAvailable(
            f"nobody owns group {group_id} now, {reason}: repeat the request at any worker",
            headers={"Retry-After": "1"},
        )
