"""The mistake that races are to find, to show that they do."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from purgatory.jobs import Jobs
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Add, Added, FireJob
from purgatory.jobs.worker.signals_since import AddResult


async def look_first(
    jobs: Jobs, specs: Sequence[JobSpec], *, session: None = None
) -> Sequence[AddResult]:
    """Do what `Jobs.add` does in the wrong order: look, then store."""
    history = jobs._missed_fires
    await history.read_to_end({key for spec in specs for key, _ in spec.since})
    fired = [history.fired_since(spec.since) for spec in specs]
    results = await jobs.ready().run([Add(spec) for spec in specs])
    steps = [
        FireJob(result.job.id, tuple(keys), result.job.round)
        for result, keys in zip(results, fired, strict=True)
        if keys and isinstance(result, Added)
    ]
    if steps:
        await jobs.ready().run(steps)
    return results


planted = patch.object(Jobs, "add", look_first)
"""Within it, what fires while a job is being stored is missed."""
