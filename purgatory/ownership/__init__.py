"""Ownership: of several processes, one at a time owns a name, by a lease with a fencing epoch.

    async with Ownership(RedisLeaseStore("redis://..."), "http://10.0.0.7:8000") as ownership:
        match await ownership.acquire("group:orders"):
            case Lease() as lease:
                await ownership.commit(lease, b"state")
            case Owner(address=address):
                ...  # forward the request, or redirect it to `address`

Here: leases as a process sees them, their renewal, and the protocol of lease stores. Not here: what
a store knows (`ownership.redis`).
"""

from purgatory.errors import (
    LeaseLostError,
    OwnershipError,
    OwnershipNotReadyError,
    OwnershipUnavailableError,
)
from purgatory.ownership.lease import Lease, LeaseRecord, LeaseStore, Owner
from purgatory.ownership.ownership import Ownership

__all__ = [
    "Lease",
    "LeaseLostError",
    "LeaseRecord",
    "LeaseStore",
    "Owner",
    "Ownership",
    "OwnershipError",
    "OwnershipNotReadyError",
    "OwnershipUnavailableError",
]
