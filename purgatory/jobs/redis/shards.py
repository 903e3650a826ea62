"""All shards of a store: choosing the shards of a step, and merging their results."""

from __future__ import annotations

import asyncio
from binascii import crc32
from collections import Counter
from collections.abc import Iterable, Sequence

from purgatory.errors import PurgatoryClosedError
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.redis.shard import RedisShard, is_error, step_error
from purgatory.jobs.redis.step_codec import names_field, step_of


class RedisShards:
    """Asks one shard, or each. Every method raises PurgatoryClosedError unless connected."""

    def __init__(self, shards: Iterable[RedisShard]) -> None:
        self.all = list(shards)
        self._is_open = False

    def open(self) -> None:
        """Allow steps: the server is there."""
        self._is_open = True

    async def close(self) -> None:
        """Refuse new steps, and wait for the round trips under way."""
        self._is_open = False
        for shard in self.all:
            await shard.drain()

    def require_open(self) -> None:
        """Raise PurgatoryClosedError unless connected."""
        if not self._is_open:
            raise PurgatoryClosedError("the store of jobs is not open: open it first")

    async def ask(self, shard: RedisShard, step: bytes) -> bytes:
        """Return the result of one step in one shard."""
        self.require_open()
        (result,) = await shard.run([step])
        if is_error(result):
            raise step_error(result)
        return result

    async def ask_all(self, step: bytes) -> list[bytes]:
        """Return the results of one step in every shard."""
        # One needs no task of its own.
        if len(self.all) == 1:
            return [await self.ask(self.all[0], step)]
        return await asyncio.gather(*(self.ask(shard, step) for shard in self.all))

    async def ask_each(self, steps: list[bytes]) -> list[bytes]:
        """Run steps that name a job by its id, in any shard; return a result for each."""
        self.require_open()
        if len(self.all) == 1:
            results = await self.all[0].run(steps)
        else:
            rows = await asyncio.gather(*(shard.run(steps) for shard in self.all))
            results = [_the_one(column) for column in zip(*rows, strict=True)]
        for result in results:
            if is_error(result):
                raise step_error(result)
        return results

    async def shares(
        self, within_ms: int, limit: int, handlers: Sequence[str] | None
    ) -> Counter[RedisShard]:
        """Return how many of the first `limit` jobs each shard has.

        Those of other handlers count until a claim has come across them.
        """
        ahead: list[tuple[int, str, RedisShard]] = []
        if limit > 0:
            replies = await self.ask_all(
                step_of("look_ahead", within_ms, limit, names_field(handlers))
            )
            for shard, reply in zip(self.all, replies, strict=True):
                lines = reply.split(b"\0") if reply else []
                ahead += [(*timed_id(line), shard) for line in lines]
        ahead.sort(key=lambda line: line[:2])
        return Counter(shard for _, _, shard in ahead[:limit])

    def home(self, spec: JobSpec) -> RedisShard:
        """Return the shard where a new job belongs."""
        # Jobs with the same dedupe key have to meet in one shard, and so have the repeats of one
        # request. Those with the same concurrency key are counted where they meet.
        own_name = spec.id if spec.request is None else spec.request.name
        name = spec.dedupe_key or spec.concurrency_key or own_name
        return self.all[crc32(name.encode("utf-8", "backslashreplace")) % len(self.all)]


def timed_id(line: bytes) -> tuple[int, str]:
    """Return the time and the id of a line of `look_ahead` or `look_back`."""
    ms, _, job_id = line.partition(b"\1")
    return int(ms), job_id.decode("utf-8", "backslashreplace")


def _the_one(column: tuple[bytes, ...]) -> bytes:
    """Return the result of the shard that has the job; of the first, if none has."""
    return next((result for result in column if result not in (b"", b"missing")), column[0])
