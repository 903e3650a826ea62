"""The first argument of every handler, and the return value with which its job waits again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, ClassVar, Final, Literal

from purgatory.errors import check_keys_type
from purgatory.jobs.model.deadline import check_given, utc
from purgatory.jobs.model.job import Job, JobOutcome
from purgatory.jobs.model.spec import needed_keys, on_fire_of, on_fire_on
from purgatory.timer.clock import Seconds


class _Unchanged(Enum):
    """A payload that stays as it is; None is a payload."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "unchanged"


UNCHANGED: Final = _Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What a handler has to return for its job to wait again, under the same id: `job.again`.

        return job.again(delay=60)

    The job is undecided then, until the deadline or a fire: `delay` seconds from when it is
    recorded, or `at` a time, at once if that is past. It holds no slot and no lease, and counts
    attempts from the start. `keys`, `on_fire` and `payload` stay as they are unless given; `until`
    is "any" if `keys` are given. `since` is as in `Purgatory.defer`, and so are the errors of
    arguments: here, or, if they depend on the store and its limits, once the handler has returned;
    then this attempt fails.

    If another job waits with the same dedupe key by then, this one is done: the other takes its
    slot. A `ceiling` is that of the first round.
    """

    delay: Seconds | None = None
    at: datetime | None = None
    keys: Iterable[str] | None = None
    since: str | Mapping[str, str] | None = None
    until: Literal["any", "all"] | int | None = None
    on_fire: Literal["run", "cancel"] | None = None
    payload: Any = UNCHANGED

    def __post_init__(self) -> None:
        """Check what does not depend on the store."""
        check_given(self.delay, self.at)
        if self.on_fire is not None:
            on_fire_of(self.on_fire)
        if self.keys is None:
            return
        check_keys_type(self.keys)
        keys = tuple(self.keys)
        object.__setattr__(self, "keys", keys)
        if self.on_fire is not None:
            on_fire_on(self.on_fire, keys)
        if self.until is not None:
            needed_keys(self.until, keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """One run of a job, as its handler sees it."""

    id: str
    """The same for every attempt: use it to make effects idempotent."""
    handler: str
    attempt: int
    """1 for the first run; runs whose worker died count too."""
    max_attempts: int
    epoch: int
    """The fencing token: higher for each run of the job, in any process. Store it with what the
    run writes, and write only where the stored one is not higher: then a run that was overtaken
    changes nothing."""
    outcome: JobOutcome
    """FIRED or EXPIRED: why the job runs."""
    fired_key: str | None
    fired_value: Any
    """The value that `fired_key` was fired with; None if no key fired."""
    fired_keys: tuple[str, ...] = ()
    """The keys that fired and count, in that order: `fired_key` is the last if it is FIRED, and
    others if several were needed."""
    deadline: datetime
    """UTC. Of a periodic job, the time that the run is for."""
    created: datetime
    """UTC."""
    round: int = 0
    """How often the job has waited again: 0 in its first round."""
    concurrency_key: str | None = None
    """Jobs with the same one share the `max_running_per_key` of the handler. Waiting again keeps
    it."""
    owner: str | None = None
    """A hash of the identity of the client that added the job over HTTP; None if it has none, and
    for jobs added in Python."""

    @classmethod
    def of(cls, job: Job) -> JobContext:
        """Return the context of a job that was started."""
        assert job.outcome is not None
        return cls(
            id=job.id,
            handler=job.handler,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            epoch=job.epoch,
            outcome=job.outcome,
            fired_key=job.fired_key,
            fired_value=job.fired_value,
            fired_keys=job.fired_keys,
            deadline=utc(job.deadline_ms),
            created=utc(job.created_ms),
            round=job.round,
            concurrency_key=job.concurrency_key,
            owner=job.owner,
        )

    again: ClassVar[type[Again]] = Again
