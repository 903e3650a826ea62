"""A journal of operations in Parquet files."""

import asyncio
from pathlib import Path

from purgatory import Purgatory
from purgatory.journal import Journal, ParquetFiles


async def main() -> None:
    with Journal(ParquetFiles("history")) as journal:
        async with Purgatory(listeners=[journal]) as purgatory:
            await purgatory.park("paid", timeout=0.001)


asyncio.run(main())
assert list(Path("history").glob("date=*/hour=*/*.parquet"))
