"""The client of Redis; the contract tests have a server."""

import asyncio

from purgatory.jobs import StoreUnavailableError
from purgatory.jobs.redis import RedisJobStore


async def main() -> None:
    try:
        await RedisJobStore("redis://127.0.0.1:9").open()
    except StoreUnavailableError:
        return
    raise AssertionError("there is no such server")


asyncio.run(main())
