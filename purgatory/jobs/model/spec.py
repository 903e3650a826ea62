"""Specifications of jobs to be added."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, TypeVar

from purgatory.errors import InvalidKeyError
from purgatory.jobs.model.deadline import Deadline, seconds_to_ms
from purgatory.jobs.model.dedupe_key import shown_dedupe_key
from purgatory.jobs.model.errors import InvalidDeadlineError, InvalidJobError, InvalidPayloadError
from purgatory.jobs.model.job import Job, JobState, Misfire, OnFire, new_job, new_job_id
from purgatory.jobs.model.limits import JobLimits
from purgatory.jobs.model.request_ids import request_ids
from purgatory.json_value import encode_json
from purgatory.operations.watch_key import check_key
from purgatory.wrong_type import check_keys_type

_Choice = TypeVar("_Choice", bound=StrEnum)


class OnConflict(StrEnum):
    """What `add` does if an undecided job has the same dedupe key."""

    ERROR = "error"
    """Raise DuplicateJobError."""
    REPLACE = "replace"
    """Replace all fields of the waiting job except id, time of creation and ceiling."""
    KEEP = "keep"
    """Leave the waiting job as it is, and return it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job to be added. Create it with `of`, which checks it as far as it can without a store."""

    id: str
    handler: str
    payload_json: str
    deadline: Deadline
    keys: tuple[str, ...] = ()
    on_fire: OnFire = OnFire.RUN
    dedupe_key: str | None = None
    concurrency_key: str | None = None
    owner: str | None = None
    on_conflict: OnConflict = OnConflict.ERROR
    max_attempts: int = 1
    misfire: Misfire = Misfire.RUN
    ceiling_delay_ms: int | None = None
    """The job's ceiling, in milliseconds from now."""
    other_ids: tuple[str, ...] = ()
    """Other ids under which the same job may have been added before; see `of_request`."""
    needed: int = 1
    """How many of `keys` have to fire to decide the job."""
    since: tuple[tuple[str, int], ...] = ()
    """Pairs of a key and a position in its history: signals after it count. Not stored: who adds
    the job looks at the history afterwards."""
    traceparent: str | None = None
    """The W3C trace context to which the runs of the job are linked."""

    @classmethod
    def of(
        cls,
        handler: str,
        payload: Any = None,
        *,
        wall_ms: int,
        delay: float | None = None,
        at: datetime | None = None,
        keys: Iterable[str] = (),
        on_fire: str = "run",
        dedupe_key: str | None = None,
        on_conflict: str = "error",
        concurrency_key: str | None = None,
        max_attempts: int = 1,
        misfire: str = "run",
        ceiling: float | None = None,
        until: str | int = "any",
        limits: JobLimits | None = None,
    ) -> JobSpec:
        """Return the job for the arguments of `Purgatory.defer`; `wall_ms` only orders its id.

        Raises InvalidDeadlineError, InvalidPayloadError, InvalidKeyError, InvalidJobError, and
        TypeError for arguments of the wrong type.
        """
        limits = JobLimits() if limits is None else limits
        unique_keys = checked_keys(keys, limits)
        return cls(
            id=new_job_id(wall_ms),
            handler=handler_of(handler),
            payload_json=encode_payload(payload, limits.max_payload_bytes),
            deadline=Deadline.of(delay=delay, at=at, limits=limits),
            keys=unique_keys,
            on_fire=on_fire_on(on_fire, unique_keys),
            dedupe_key=_owned_key(dedupe_key),
            on_conflict=_on_conflict(on_conflict, dedupe_key),
            concurrency_key=_owned_key(concurrency_key),
            max_attempts=_max_attempts(max_attempts, limits),
            misfire=_choice(Misfire, "misfire", misfire),
            ceiling_delay_ms=(
                None if ceiling is None else seconds_to_ms(ceiling, "ceiling", limits)
            ),
            needed=needed_keys(until, unique_keys),
        )

    def of_request(self, request: str, *, wall_ms: int) -> JobSpec:
        """Return the same job with ids derived from `request`, so that repeats add it only once.

        This holds for all processes, within 24 hours by `wall_ms`, while the store retains the job,
        if clocks differ by less than an hour. `request` identifies the request: it contains the
        client's identity and the name that the client gave.
        """
        first, *others = request_ids(request, wall_ms)
        return replace(self, id=first, other_ids=tuple(others))

    @property
    def ids(self) -> tuple[str, ...]:
        """Every id under which the job may be stored; `id` first."""
        return (self.id, *self.other_ids)

    def may_be(self, job: Job, limits: JobLimits) -> bool:
        """Return False if `job` was certainly not added by this specification.

        If the job has changed since, its deadline is not compared, as it may have been rescheduled,
        and with a dedupe key, or once it has waited again, no field that may have been replaced.
        """
        if job.version > 1 and (job.dedupe_key is not None or job.round):
            return self.dedupe_key == job.dedupe_key
        try:
            deadline_ms = self.deadline.resolve(job.created_ms, limits)
        except InvalidDeadlineError:
            return False
        asked = self.job(job.created_ms, deadline_ms)
        is_moved = job.version == 1 and asked.deadline_ms != job.deadline_ms
        return not is_moved and _fixed_of(asked) == _fixed_of(job)

    def job(self, now_ms: int, deadline_ms: int, *, ceiling_ms: int | None = None) -> Job:
        """Return the new job, with the deadline limited by the ceiling.

        `now_ms` is the store's clock, `deadline_ms` the result of `deadline.resolve`, and
        `ceiling_ms` the ceiling of the job that this one replaces, which does not change.
        """
        if ceiling_ms is None and self.ceiling_delay_ms is not None:
            ceiling_ms = now_ms + self.ceiling_delay_ms
        if ceiling_ms is not None:
            deadline_ms = min(ceiling_ms, deadline_ms)
        return new_job(
            id=self.id,
            handler=self.handler,
            payload_json=self.payload_json,
            deadline_ms=deadline_ms,
            due_ms=deadline_ms,
            created_ms=now_ms,
            keys=self.keys,
            on_fire=self.on_fire,
            dedupe_key=self.dedupe_key,
            concurrency_key=self.concurrency_key,
            owner=self.owner,
            max_attempts=self.max_attempts,
            misfire=self.misfire,
            ceiling_ms=ceiling_ms,
            needed=self.needed,
            traceparent=self.traceparent,
        )


# The fields that only a replacing `add` changes.
_fixed_of = attrgetter(
    "handler",
    "payload_json",
    "keys",
    "on_fire",
    "dedupe_key",
    "concurrency_key",
    "owner",
    "max_attempts",
    "misfire",
    "ceiling_ms",
    "needed",
)


def encode_payload(payload: Any, max_bytes: int) -> str:
    """Return `payload` as compact JSON; raise InvalidPayloadError for anything else."""
    try:
        text = encode_json(payload)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidPayloadError(
            f"the payload is not JSON ({exc}): give null, a boolean, a finite number, a string, or "
            "lists and dicts of them"
        ) from exc
    if size > max_bytes:
        raise InvalidPayloadError(
            f"the payload takes {size} bytes as JSON, more than the limit of {max_bytes}: store it "
            "elsewhere and defer its address"
        )
    return text


def handler_of(handler: str) -> str:
    """Return the name of a handler; raise InvalidJobError or TypeError."""
    if not isinstance(handler, str):
        raise TypeError(f"handler is {handler!r}: give the name of a registered handler")
    try:
        check_key(handler)
    except InvalidKeyError as exc:
        raise InvalidJobError(
            f"handler {handler[:64]!r} is no name: 1 to 256 characters, none of them control",
            param="handler",
        ) from exc
    return handler


def checked_keys(keys: Iterable[str], limits: JobLimits) -> tuple[str, ...]:
    """Return keys without repeats; raise InvalidJobError, InvalidKeyError or TypeError."""
    check_keys_type(keys)
    # Each once, in the order given.
    unique = tuple(dict.fromkeys(keys))
    if len(unique) > limits.max_keys:
        raise InvalidJobError(
            f"a job waits on up to {limits.max_keys} keys; this one has {len(unique)}: fire one "
            "key that stands for several",
            param="keys",
        )
    for key in unique:
        check_key(key)
    return unique


def needed_keys(until: str | int, keys: tuple[str, ...]) -> int:
    """Return how many of `keys` `until` asks for; raise InvalidJobError or TypeError."""
    if until == "any":
        return 1
    if isinstance(until, bool) or not isinstance(until, str | int):
        raise TypeError(f'until is {until!r}: give "any", "all" or a number of keys')
    if not keys:
        raise InvalidJobError(
            f"until is {until!r}, and there are no keys: give the keys that have to fire",
            param="until",
        )
    if until == "all":
        return len(keys)
    if isinstance(until, str) or not 1 <= until <= len(keys):
        raise InvalidJobError(
            f'until is {until!r}: give "any", "all", or a number of keys from 1 to {len(keys)}',
            param="until",
        )
    return until


def on_fire_of(value: str) -> OnFire:
    """Return what a job does when its keys fire; raise InvalidJobError."""
    return _choice(OnFire, "on_fire", value)


def on_fire_on(value: str, keys: Collection[str]) -> OnFire:
    """Return what a job on `keys` does when they fire; raise InvalidJobError."""
    choice = on_fire_of(value)
    if choice is OnFire.CANCEL and not keys:
        raise InvalidJobError(
            f"on_fire is {str(choice)!r}, and there are no keys: give the keys that cancel the job "
            "when they fire, or leave on_fire out",
            param="on_fire",
        )
    return choice


def state_of(value: str) -> JobState:
    """Return a state of jobs; raise InvalidJobError."""
    return _choice(JobState, "state", value)


def _owned_key(key: Any) -> Any:
    if isinstance(key, str):
        # An owner before it is not the client's, and takes nothing of its 256 characters.
        check_key(shown_dedupe_key(key))
    elif key is not None:
        check_key(key)
    return key


def _max_attempts(max_attempts: int, limits: JobLimits) -> int:
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int):
        raise TypeError(f"max_attempts is {max_attempts!r}: give a whole number")
    if not 1 <= max_attempts <= limits.max_attempts:
        raise InvalidJobError(
            f"max_attempts is {max_attempts}: give a number from 1 to {limits.max_attempts}",
            param="max_attempts",
        )
    return max_attempts


def _choice(choices: type[_Choice], name: str, value: str) -> _Choice:
    try:
        return choices(value)
    except ValueError:
        allowed = ", ".join(repr(str(choice)) for choice in choices)
        raise InvalidJobError(f"{name} is {value!r}: give one of {allowed}", param=name) from None


def _on_conflict(on_conflict: str, dedupe_key: str | None) -> OnConflict:
    choice = _choice(OnConflict, "on_conflict", on_conflict)
    if dedupe_key is None and choice is not OnConflict.ERROR:
        raise InvalidJobError(
            f"on_conflict is {str(choice)!r}, and there is no dedupe_key that could be in "
            "conflict: give a dedupe_key too, or leave on_conflict out",
            param="on_conflict",
        )
    return choice
