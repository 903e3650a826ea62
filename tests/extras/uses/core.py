"""The core, without any dependency."""

import asyncio

from purgatory import Purgatory


async def main() -> None:
    async with Purgatory() as purgatory:
        parked = asyncio.ensure_future(purgatory.park("paid", timeout=60))
        await asyncio.sleep(0)
        await purgatory.fire("paid", {"by": "card"})
        assert (await parked).value == {"by": "card"}
        assert not await purgatory.park("paid", timeout=0.001)


asyncio.run(main())
