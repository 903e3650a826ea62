"""The mistake that races are to find, to show that they do."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from purgatory.jobs.job_service import JobService
from purgatory.jobs.missed_fires import AddResult
from purgatory.jobs.model import Add, Added, FireJob, JobSpec


async def look_first(service: JobService, specs: Sequence[JobSpec]) -> Sequence[AddResult]:
    """Do what `JobService.add` does in the wrong order: look, then store."""
    await service.history.read_to_end({key for spec in specs for key, _ in spec.since})
    fired = [service.history.fired_since(spec.since) for spec in specs]
    results = await service.ready().run([Add(spec) for spec in specs])
    steps = [
        FireJob(result.job.id, tuple(keys), result.job.round)
        for result, keys in zip(results, fired, strict=True)
        if keys and isinstance(result, Added)
    ]
    if steps:
        await service.ready().run(steps)
    return results


planted = patch.object(JobService, "add", look_first)
"""Within it, what fires while a job is being stored is missed."""
