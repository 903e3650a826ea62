"""The coordinator as one of several workers, each of which owns some groups by leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from pydantic import BaseModel

from examples.join_group.schemas import GroupError, OwnedElsewhere
from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.coordinator import Coordinator, GroupSettings
from examples.kafka_broker.groups.group import Group, JoinRequest, Member
from purgatory import Purgatory
from purgatory.ownership import Lease, LeaseLostError, Owner, Ownership, OwnershipUnavailableError

Result = TypeVar("Result")

_ATTEMPTS = 3


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

        With `creates`, the group may be new. Raises OwnedElsewhere, and GroupError if nobody can
        be found or become the owner now.
        """
        try:
            lease = await self._own(group_id, creates)
            if lease is not None and lease.state is not None and group_id not in self.groups:
                self.resume(_restored(Group(group_id, lease.epoch), lease.state))
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
        raise _not_available(group_id, "its lease has just ended")

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
            raise _not_available(group_id, "Redis is out of reach") from exc
        if isinstance(found, Owner):
            raise self._elsewhere(group_id, found.address)
        return found

    def _elsewhere(self, group_id: str, address: str) -> Exception:
        if address == self.ownership.address:
            # A redirect would come back here.
            return _not_available(
                group_id,
                f"another process owns it at this worker's address {address}: it has died, or two "
                "workers have the same address",
            )
        return OwnedElsewhere(address)

    def new_group(self, group_id: str) -> Group:
        """Return a group whose generations are above those of earlier owners."""
        lease = self.ownership.lease(group_id)
        if lease is None:
            raise _not_available(group_id, "its lease has just ended")
        return Group(group_id, lease.epoch)

    def owns(self, group: Group) -> bool:
        """Return True iff this worker has the lease: after a suspension, timers are late."""
        is_owned = self.ownership.lease(group.group_id) is not None
        # Asking may have been what noticed the loss.
        return is_owned and super().owns(group)

    def before_generation(self, group: Group, begin: Callable[[Group], object]) -> None:
        """Commit the next generation first. If that fails, the lease is lost and so the group."""
        self._begin(self._commit(group.group_id, _stored(group), lambda: begin(group)))

    def before_removal(self, group: Group, remove: Callable[[], object]) -> None:
        """Delete what is stored first: until then the group is dead, and nobody makes another."""
        self._begin(self._commit(group.group_id, None, remove, release=True))

    async def _commit(
        self,
        group_id: str,
        state: bytes | None,
        then: Callable[[], object],
        *,
        release: bool = False,
    ) -> None:
        lease = self.ownership.lease(group_id)
        if lease is None:
            return
        try:
            await self.ownership.commit(lease, state)
        except LeaseLostError:
            return
        then()
        if release:
            await self.ownership.release(lease)

    def _begin(self, work: Coroutine[object, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _not_available(group_id: str, reason: str) -> GroupError:
    return GroupError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        f"nobody owns group {group_id} now, {reason}: repeat the request at any worker",
    )


class _StoredMember(BaseModel):
    """A member; what it sends again when it joins again is left out."""

    member_id: str
    client_id: str
    protocols: list[str]
    session_timeout_ms: int
    rebalance_timeout_ms: int


class _StoredGroup(BaseModel):
    """A group when a generation begins."""

    generation: int
    protocol_type: str | None
    members: list[_StoredMember]


def _stored(group: Group) -> bytes:
    """Return `group` as it is committed before its next generation begins."""
    members = [
        _StoredMember(
            member_id=member.member_id,
            client_id=member.client_id,
            protocols=list(member.protocols),
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
        )
        for member in group.members.values()
    ]
    stored = _StoredGroup(
        generation=group.next_generation, protocol_type=group.protocol_type, members=members
    )
    return stored.model_dump_json().encode()


def _restored(group: Group, state: bytes) -> Group:
    """Return a new `group` with the generation and the members of `state`."""
    stored = _StoredGroup.model_validate_json(state)
    group.generation = stored.generation
    for known in stored.members:
        request = JoinRequest(
            group_id=group.group_id,
            client_id=known.client_id,
            protocols=[(name, b"") for name in known.protocols],
            session_timeout_ms=known.session_timeout_ms,
            rebalance_timeout_ms=known.rebalance_timeout_ms,
        )
        member = Member(known.member_id, request)
        member.is_new = False
        group.add(member, stored.protocol_type or "")
    return group
