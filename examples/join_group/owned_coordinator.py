"""The coordinator as one of several workers, each of which owns some groups by leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from pydantic import TypeAdapter

from examples.join_group.settings import error
from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.coordinator import Coordinator, GroupSettings
from examples.kafka_broker.groups.group import Group, JoinRequest, Member
from purgatory import Purgatory
from purgatory.ownership import Lease, LeaseLostError, Owner, Ownership

Result = TypeVar("Result")

_ATTEMPTS = 3


class OwnedElsewhere(Exception):
    """Another worker, with this address, owns the group."""


class OwnedCoordinator(Coordinator):
    """Handles the groups whose leases this worker has; see `purgatory.ownership`.

    A generation is committed, with its members, before any of them learns of it. The next owner
    lets these members join again. What happens between two generations is in memory only.
    """

    def __init__(self, purgatory: Purgatory, settings: GroupSettings, ownership: Ownership) -> None:
        """Use `ownership`, whose names are the ids of groups."""
        super().__init__(purgatory, purgatory, settings)
        self.ownership = ownership
        ownership.on_lost = lambda lease: self.abandon(lease.name, ErrorCode.NOT_COORDINATOR)
        self._tasks: set[asyncio.Task[None]] = set()

    async def as_owner(
        self, group_id: str, action: Callable[[], Result], *, creates: bool = False
    ) -> Result:
        """Return `action()`, called when this worker owns the group, or nobody and there is none.

        With `creates`, the group may be new. Raises OwnedElsewhere, and HTTPException or
        OwnershipUnavailableError if nobody can be found or become the owner now.
        """
        try:
            lease = await self._own(group_id, creates)
            if lease is not None and lease.state is not None and group_id not in self.groups:
                self.resume(_restore(Group(group_id, lease.epoch), lease.state))
            # No await since the lease was seen to be valid.
            return action()
        finally:
            if group_id not in self.groups:
                lease = self.ownership.lease(group_id)
                if lease is not None:
                    await self.ownership.release(lease)

    async def _own(self, group_id: str, creates: bool) -> Lease | None:
        for _ in range(_ATTEMPTS):
            lease = self.ownership.lease(group_id) or await self._acquire(group_id, creates)
            # Not valid if the request for which it was acquired has failed, and released it.
            if lease is None or lease.is_valid:
                return lease
        raise error(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def _acquire(self, group_id: str, creates: bool) -> Lease | None:
        if not creates:
            record = await self.ownership.read(group_id)
            if record.address is not None:
                raise self._elsewhere(group_id, record.address)
            if record.state is None:
                # Nothing is acquired for the ids that a client makes up.
                return None
        found = await self.ownership.acquire(group_id)
        if isinstance(found, Owner):
            raise self._elsewhere(group_id, found.address)
        return found

    def _elsewhere(self, group_id: str, address: str) -> Exception:
        if address == self.ownership.address:
            # A redirect would come back here.
            reason = f"two workers have the address {address}, or one has just died there"
            return error(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)
        return OwnedElsewhere(address)

    def new_group(self, group_id: str) -> Group:
        """Return a group whose generations are above those of earlier owners."""
        lease = self.ownership.lease(group_id)
        if lease is None:
            raise error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Group(group_id, lease.epoch)

    def owns(self, group: Group) -> bool:
        """Return True iff this worker has the lease: after a suspension, timers are late."""
        is_owned = self.ownership.lease(group.group_id) is not None
        # Asking may have been what noticed the loss.
        return is_owned and super().owns(group)

    def before_generation(self, group: Group, begin: Callable[[Group], object]) -> None:
        """Commit the next generation first. If that fails, the lease is lost and so the group."""
        self._commit(group.group_id, _store(group), lambda: begin(group))

    def before_removal(self, group: Group, remove: Callable[[], object]) -> None:
        """Delete what is stored first: until then the group is dead, and nobody makes another."""
        self._commit(group.group_id, None, remove)

    def _commit(self, group_id: str, state: bytes | None, then: Callable[[], object]) -> None:
        async def commit() -> None:
            lease = self.ownership.lease(group_id)
            if lease is not None:
                with suppress(LeaseLostError):
                    await self.ownership.commit(lease, state)
                    then()
                    if state is None:
                        await self.ownership.release(lease)

        task = asyncio.get_running_loop().create_task(commit())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


# The number of a generation, and its members by id, as they would join.
_stored = TypeAdapter(tuple[int, dict[str, JoinRequest]])


def _store(group: Group) -> bytes:
    """Return `group` as it is committed before its next generation begins.

    Without metadata, which members send again when they join again.
    """
    members = {
        member.member_id: JoinRequest(
            group_id="",
            client_id=member.client_id,
            protocol_type=group.protocol_type or "",
            protocols=[(name, b"") for name in member.protocols],
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
        )
        for member in group.members.values()
    }
    return _stored.dump_json((group.next_generation, members), exclude_defaults=True)


def _restore(group: Group, state: bytes) -> Group:
    """Return a new `group` with the generation and the members of `state`."""
    group.generation, members = _stored.validate_json(state)
    for member_id, request in members.items():
        member = Member(member_id, request)
        member.is_new = False
        group.add(member, request.protocol_type)
    return group
