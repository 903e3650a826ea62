"""Delayed jobs: their fields, states and outcomes, and what is asked of them."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from enum import StrEnum
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, cast

from purgatory.json_value import decode_json, stored_value
from purgatory.operations.watch_key import check_key

__all__ = [
    "BlockedBy",
    "HandlerState",
    "Job",
    "JobClaim",
    "JobCounts",
    "JobFilter",
    "JobOutcome",
    "JobPage",
    "JobState",
    "Misfire",
    "OnFire",
]


def owner_of(identity: str) -> str:
    """Return what is stored for a client's identity: 16 hexadecimal digits of its hash."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


_OWNED = re.compile(r"~[0-9a-f]{16}~(.+)", re.DOTALL)


def owned_dedupe_key(dedupe_key: str, owner: str) -> str:
    """Return what is stored for a dedupe key of `owner`: equal keys of others are other keys."""
    return f"~{owner_of(owner)}~{dedupe_key}"


def shown_dedupe_key(dedupe_key: str) -> str:
    """Return the dedupe key as its owner gave it."""
    match = _OWNED.fullmatch(dedupe_key)
    return dedupe_key if match is None else match[1]


DEFAULT_ATTEMPTS = 10

"""How often a job is started at most, unless it or its store says otherwise."""


class JobState(StrEnum):
    """The state of a job; the last three are final."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True iff a job in this state has ended: only `Retry` changes a failed one."""
        return self not in (JobState.WAITING, JobState.RUNNING)


class JobOutcome(StrEnum):
    """What decided a job. Recorded once for each round, never changed."""

    FIRED = "fired"
    """One of its keys fired."""
    EXPIRED = "expired"
    """Its deadline passed, or it was run by hand, before a key fired."""
    CANCELLED = "cancelled"
    """It was cancelled before either."""
    MISSED = "missed"
    """No worker ran at its deadline, and its misfire policy is SKIP."""


class BlockedBy(StrEnum):
    """What keeps a job that is due from being claimed."""

    PAUSED = "paused"
    """Its handler is paused."""
    MAX_RUNNING = "max_running"
    """As many jobs run as its handler allows."""
    MAX_RUNNING_PER_KEY = "max_running_per_key"
    """As many with its concurrency key."""


class OnFire(StrEnum):
    """What a job does when one of its keys fires."""

    RUN = "run"
    CANCEL = "cancel"


class Misfire(StrEnum):
    """The policy for a job whose deadline passed while no worker ran."""

    RUN = "run"
    """It runs immediately."""
    SKIP = "skip"
    """It does not run; its outcome is missed."""
    SPREAD = "spread"
    """It runs after a random delay, so that not all of them run at the same time."""


class JobClaim(NamedTuple):
    """A worker's claim to a job, valid while the job has this epoch."""

    id: str
    epoch: int

    def holds(self, job: Job | None) -> bool:
        """Return True iff the claim is valid for the stored job; `job` is None if there is none."""
        return job is not None and job.epoch == self.epoch and job.lease_until_ms > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A snapshot of a stored job. All times are wall times of the store's clock.

    Invariants:
        is_undecided == (state is WAITING and outcome is None)
        state.is_final == (finished_ms is not None)
        state in (RUNNING, DONE, FAILED) implies outcome in (FIRED, EXPIRED)
        state is CANCELLED implies outcome is not None
        (outcome is FIRED) == (fired_key is not None) == (fired_json is not None)
        len(fired_before) < needed, and all(key in keys for key in fired_before)
        state is RUNNING implies attempt >= 1
        state.is_final implies slot_ms is None
        blocked_by is None or (lease_until_ms == 0 and not state.is_final)
        ceiling_ms is None or deadline_ms <= ceiling_ms
    """

    id: str
    """Opaque; sorts by time of creation, on the clock of the process that created it."""
    handler: str
    payload_json: str
    """The payload as compact JSON."""
    deadline_ms: int
    """The requested time, at which it runs unless a key fires first."""
    due_ms: int
    """The time of the next run: the deadline, unless the job was fired, run by hand, spread or
    retried."""
    created_ms: int
    keys: tuple[str, ...] = ()
    on_fire: OnFire = OnFire.RUN
    dedupe_key: str | None = None
    concurrency_key: str | None = None
    """Jobs with the same one share the handler's `max_running_per_key`."""
    owner: str | None = None
    """Who added it over HTTP (`owner_of`); None if unknown, and for jobs added in Python."""
    max_attempts: int = DEFAULT_ATTEMPTS
    misfire: Misfire = Misfire.RUN
    ceiling_ms: int | None = None
    """Rescheduling never moves the deadline beyond this."""
    state: JobState = JobState.WAITING
    outcome: JobOutcome | None = None
    """None until it is decided."""
    fired_key: str | None = None
    fired_json: str | None = None
    """The value that `fired_key` was fired with, as compact JSON."""
    needed: int = 1
    """How many of `keys` have to fire to decide it."""
    fired_before: tuple[str, ...] = ()
    """The keys that fired before `fired_key`, in that order; only if several are needed."""
    attempt: int = 0
    """The number of starts."""
    epoch: int = 0
    """The fencing token: changes whenever a worker gets or loses the lease."""
    round: int = 0
    """How often it has waited again: `JobContext.again`. Outcome, attempt and lateness are those of
    this round."""
    round_ms: int | None = None
    """When this round began; None in the first, which began with the job. Also in the first, if
    its transaction fired one of its keys before: that fire does not decide it."""
    worker: str | None = None
    """The worker that holds the lease, or held it last."""
    lease_until_ms: int = 0
    """The end of the lease, before which no other worker can claim it; 0 without a lease."""
    leased_ms: int = 0
    """When that lease began, or the last one. If that is later than now, the store's clock has gone
    back since: see `Claim`."""
    blocked_by: BlockedBy | None = None
    """What keeps it from running although it is due, or soon: no worker holds it. None if nothing
    does."""
    slot_ms: int | None = None
    """Since when it holds a slot, and counts for the bounds of its handler; None if it does not.
    It keeps the slot until it has run, returns to waiting, or is decided otherwise."""
    lateness_ms: int | None = None
    """The delay of the first start after its due time; None before the first start."""
    finished_ms: int | None = None
    error: str | None = None
    """The error of the last failed attempt."""
    version: int = 1
    """Changes with state, outcome, deadline_ms, due_ms and replaced fields, but not with leases.
    ETags contain it."""
    traceparent: str | None = None
    """The trace context in which it was deferred, if that is traced; also of its later rounds."""

    @property
    def claim(self) -> JobClaim:
        """The claim of the worker that has just claimed this job."""
        return JobClaim(self.id, self.epoch)

    @property
    def is_undecided(self) -> bool:
        """True iff it waits and has no outcome.

        Then it waits on its keys, holds its dedupe key, and can be rescheduled or replaced.
        """
        return self.state is JobState.WAITING and self.outcome is None

    def waits_on(self, key: str) -> bool:
        """Return True iff it is undecided and `key` is one of its keys that have not fired."""
        return self.is_undecided and key in self.keys and key not in self.fired_before

    @property
    def waiting_since_ms(self) -> int:
        """When it began to wait for what decides it."""
        return self.created_ms if self.round_ms is None else self.round_ms

    @property
    def open_keys(self) -> tuple[str, ...]:
        """The keys that it waits on: none once it is decided."""
        if not self.is_undecided:
            return ()
        if not self.fired_before:
            return self.keys
        return tuple(key for key in self.keys if key not in self.fired_before)

    @property
    def fired_keys(self) -> tuple[str, ...]:
        """The keys that fired and count, in that order; a key that decided it is the last."""
        return self.fired_before if self.fired_key is None else (*self.fired_before, self.fired_key)

    @property
    def is_by_hand(self) -> bool:
        """True iff it was run by hand before its deadline.

        False again after a retry whose due time is after the deadline.
        """
        is_run = self.outcome in (None, JobOutcome.EXPIRED)
        return is_run and self.due_ms < self.deadline_ms

    @property
    def payload(self) -> Any:
        """The payload, decoded by each access."""
        return stored_value(self.payload_json)

    @property
    def fired_value(self) -> Any:
        """The value that a key was fired with, decoded by each access; None if no key fired."""
        return None if self.fired_json is None else stored_value(self.fired_json)


_values_of = attrgetter(*Job.__slots__)
_values_in = itemgetter(*Job.__slots__)
# A frozen class sets each of its fields through object.__setattr__. A draft, which has the same
# slots, does not, and becomes a job in a third of the time: workers claim, renew, start and finish
# in batches of hundreds, each in one turn of their loop.
_Draft: Any = make_dataclass(
    "_Draft",
    [(each.name, Any, field(default=each.default)) for each in fields(Job)],
    slots=True,
)
# Errors about missing or unknown fields name it, and the caller knows only the job.
_Draft.__init__.__qualname__ = "Job.__init__"


def _job(**values: Any) -> Job:
    return _finished(_Draft(**values))


def _finished(draft: Any) -> Job:
    draft.__class__ = Job
    return draft  # type: ignore[no-any-return]  # of the class that the line above gives it


new_job = cast("type[Job]", _job)
"""`Job`, in a third of its time."""


def changed(job: Job, **changes: object) -> Job:
    """Return the job with other values in some fields, as `dataclasses.replace` does."""
    draft = _Draft(*_values_of(job))
    for name, value in changes.items():
        setattr(draft, name, value)
    return _finished(draft)


def job_with(values: Mapping[str, object]) -> Job:
    """Return the job that has exactly these fields, all of them; KeyError names a missing one."""
    return _finished(_Draft(*_values_in(values)))


def contradiction(job: Job) -> str | None:
    """Return, in words, an invariant of `Job` that does not hold; None if all hold."""
    state, outcome = job.state, job.outcome
    is_fired = outcome is JobOutcome.FIRED
    if state.is_final != (job.finished_ms is not None):
        return f"it is {state} and finished at {job.finished_ms}"
    if is_fired != (job.fired_key is not None) or is_fired != (job.fired_json is not None):
        return f"its outcome is {outcome} and the key that fired is {job.fired_key!r}"
    if job.needed != 1 and not 1 <= job.needed <= len(job.keys):
        return f"it needs {job.needed} of {len(job.keys)} keys"
    if job.fired_before and not (
        len(job.fired_before) < job.needed and set(job.fired_before) <= set(job.keys)
    ):
        return f"it needs {job.needed} keys, and {len(job.fired_before)} have fired before"
    if job.ceiling_ms is not None and job.deadline_ms > job.ceiling_ms:
        return "its deadline lies beyond its ceiling"
    if job.blocked_by is not None and (job.lease_until_ms or state.is_final):
        return f"it is {state}, with a lease until {job.lease_until_ms}, and blocked"
    if job.slot_ms is not None and state.is_final:
        return f"it is {state} and holds a slot"
    if state is JobState.WAITING:
        return None
    if state is JobState.CANCELLED:
        return "it is cancelled without an outcome" if outcome is None else None
    if outcome not in (JobOutcome.FIRED, JobOutcome.EXPIRED):
        return f"it is {state} and its outcome is {outcome}"
    if state is JobState.RUNNING and job.attempt < 1:
        return "it runs and was never started"
    return None


def check_stored(job: Job) -> None:
    """Raise ValueError for a job from a store that is not one that we could have stored.

    Its handler could not read what is not JSON, and no response could show it.
    """
    numbers = [each for each in _numbers_of(job) if each is not None]
    times = [each for each in _times_of(job) if each is not None]
    if not -_MAX_NUMBER < min(numbers) <= max(numbers) < _MAX_NUMBER:
        raise ValueError("a number is out of bounds")
    if not _FIRST_MS <= min(times) <= max(times) <= _LAST_MS:
        raise ValueError("a time is before the year 1 or after 9999")
    for key in (job.handler, *job.keys):
        check_key(key)
    decode_json(job.payload_json.encode())
    if job.fired_json is not None:
        decode_json(job.fired_json.encode())
    reason = contradiction(job)
    if reason is not None:
        raise ValueError(reason)


# Of numbers that scripts and browsers have exactly.
_MAX_NUMBER = 2**53
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_times_of = attrgetter(
    *("due_ms", "deadline_ms", "created_ms", "ceiling_ms", "round_ms", "slot_ms", "finished_ms")
)
_numbers_of = attrgetter(
    *("lease_until_ms", "leased_ms", "lateness_ms", "attempt", "epoch", "version"),
    *("max_attempts", "needed", "round"),
)


class _JobIds:
    """Makes ids that sort as they were made, also within a millisecond."""

    def __init__(self) -> None:
        self._wall_ms = -1
        self._count = 0

    def __call__(self, wall_ms: int) -> str:
        # Two threads at once may get the same count: then only their order is left to chance.
        self._count = self._count + 1 if wall_ms == self._wall_ms else 0
        self._wall_ms = wall_ms
        count = self._count & 0xFFFF
        return f"{wall_ms & 0xFFFF_FFFF_FFFF:012x}{count:04x}{secrets.token_hex(8)}"


new_job_id = _JobIds()
"""Return 128 bits as 32 hexadecimal digits: 48 of `wall_ms`, 16 that count, 64 random ones.

Lists are ordered by id: of those of one process and millisecond, the later ones are larger, as in
RFC 9562, 6.2, method 1.
"""


def bounded_error(error: str | None, max_length: int) -> str | None:
    """Return the beginning of an error's text, without NUL and surrogates, for every store."""
    if error is None:
        return None
    text = error[:max_length].encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("\x00", "\\x00")[:max_length]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs `query` returns: those that match every field that is set."""

    state: JobState | None = None
    handler: str | None = None
    key: str | None = None
    """One of the job's keys, whatever its state."""
    concurrency_key: str | None = None
    """As its owner gave it: equal keys of several owners match, too."""
    is_blocked: bool = False
    """Only jobs that are due and wait for a slot or for the end of a pause: `Job.blocked_by`."""

    def matches(self, job: Job) -> bool:
        """Return True iff `job` matches every field that is set."""
        return (
            self.state in (None, job.state)
            and self.handler in (None, job.handler)
            and (self.key is None or self.key in job.keys)
            and self.concurrency_key in (None, _shown(job.concurrency_key))
            and (job.blocked_by is not None or not self.is_blocked)
        )


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some of the jobs that match, the highest id first: about the newest first."""

    jobs: list[Job]
    next: str | None
    """`after` of the next page; None on the last one. A page with a `next` may have fewer jobs than
    `limit`, or none."""


@dataclass(frozen=True, slots=True)
class RetriedPage:
    """A batch of failed jobs that run again."""

    retried: int
    next: str | None
    """`after` of the next batch; None after the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """How many jobs are in each state."""

    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    quarantined: int = 0
    """Corrupt records that were quarantined, including those that were dropped since."""
    blocked: int = 0
    """Of the others, jobs that are due and wait for a slot or for the end of a pause: in a
    database, MAX_BLOCKED if they are more."""


MAX_BLOCKED = 100_000
"""How many blocked jobs a database counts: it takes some tens of milliseconds."""


class HandlerState(NamedTuple):
    """What jobs are counted by."""

    handler: str
    state: JobState
    blocked_by: str | None = None
    """`Job.blocked_by`."""


def _shown(concurrency_key: str | None) -> str | None:
    return None if concurrency_key is None else shown_dedupe_key(concurrency_key)
