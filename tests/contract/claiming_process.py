"""A process that claims until nothing is left: prints a line when it is ready, then what it got."""

import asyncio
import sys

from sqlalchemy.ext.asyncio import create_async_engine

from tests.step_methods import SqlSteps


async def claim_all(url: str, schema: str) -> None:
    options = {"server_settings": {"search_path": schema}} if schema else {}
    engine = create_async_engine(url, connect_args=options)
    store = SqlSteps(engine)
    await store.open()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    claimed: list[str] = []
    while True:
        jobs = (await store.claim("w", within_ms=0, limit=3, lease_ms=600_000)).jobs
        if not jobs:
            break
        claimed += [job.id for job in jobs]
    await store.close()
    await engine.dispose()
    print(" ".join(claimed), flush=True)


if __name__ == "__main__":
    asyncio.run(claim_all(*sys.argv[1:]))
