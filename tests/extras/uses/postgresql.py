"""The driver of PostgreSQL; the contract tests have a server."""

import asyncio

from purgatory.jobs import StoreUnavailableError
from purgatory.jobs.sql import SqlJobStore


async def main() -> None:
    try:
        await SqlJobStore("postgresql://nobody@127.0.0.1:9/none").open()
    except StoreUnavailableError:
        return
    raise AssertionError("there is no such server")


asyncio.run(main())
