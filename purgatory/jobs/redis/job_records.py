"""Reading records; corrupt ones are quarantined."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from purgatory.job_errors import CorruptJobError
from purgatory.jobs.model.job import Job
from purgatory.jobs.redis.record import decode_job
from purgatory.jobs.redis.shards import RedisShards
from purgatory.jobs.redis.step_codec import step_of

_logger = logging.getLogger("purgatory.jobs.redis")


class JobRecords:
    """Decodes the records in the replies of shards."""

    def __init__(self, shards: RedisShards) -> None:
        self._shards = shards

    async def decode(self, found: bytes) -> Job:
        """Return the job in `id NUL record`; raise CorruptJobError once it is quarantined."""
        try:
            return decode_job(found)
        except CorruptJobError as exc:
            _logger.error("%s", exc, extra={"action": "jobs.redis.quarantine"})
            _, _, record = found.partition(b"\0")
            step = step_of("quarantine", exc.job_id, exc.reason) + b"\0" + record
            await self._shards.ask_all(step)
            raise

    async def job(self, found: bytes) -> Job | None:
        """Return the job in a reply; None if the reply is empty or the record corrupt."""
        if not found:
            return None
        try:
            return await self.decode(found)
        except CorruptJobError:
            return None

    async def jobs(self, several: Iterable[bytes]) -> list[Job]:
        """Return the jobs in several replies."""
        jobs = [await self.job(found) for found in several]
        return [job for job in jobs if job is not None]
