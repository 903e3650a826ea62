"""What one would write by hand in Redis: a ZADD and an HSET for each job."""

from __future__ import annotations

from redis.asyncio import Redis

from purgatory.jobs.model import JobSpec
from purgatory.jobs.redis.shards import StepBatches


class BareRedis:
    """Sends the commands of all callers together, through the group commit and client of ours."""

    def __init__(self, url: str) -> None:
        self._client = Redis.from_url(url)
        self._commit = StepBatches(self._send)

    async def add(self, spec: JobSpec) -> None:
        await self._commit.run([spec.payload_json.encode(), spec.id.encode()])

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(self, steps: list[bytes]) -> list[bytes]:
        async with self._client.pipeline(transaction=False) as pipe:
            for place in range(0, len(steps), 2):
                pipe.execute_command("ZADD", "bare:due", place, steps[place + 1])
                pipe.execute_command("HSET", "bare:jobs", steps[place + 1], steps[place])
            await pipe.execute()
        return steps
