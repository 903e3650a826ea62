"""The client of Redis; the contract tests have a server."""

import asyncio

from purgatory.jobs import StoreUnavailableError
from purgatory.jobs.redis import RedisJobStore
from purgatory.ownership import Ownership, OwnershipUnavailableError
from purgatory.ownership.redis import RedisLeaseStore


async def main() -> None:
    async with Ownership(RedisLeaseStore("redis://127.0.0.1:9"), "http://a") as ownership:
        try:
            await ownership.acquire("name")
        except OwnershipUnavailableError:
            pass
    try:
        await RedisJobStore("redis://127.0.0.1:9").open()
    except StoreUnavailableError:
        return
    raise AssertionError("there is no such server")


asyncio.run(main())
