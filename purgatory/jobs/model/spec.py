"""Specifications of jobs to be added."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypedDict, TypeVar, Unpack

from purgatory.errors import InvalidKeyError, check_keys_type
from purgatory.job_errors import InvalidJobError, InvalidPayloadError
from purgatory.jobs.model.deadline import Deadline, seconds_to_ms
from purgatory.jobs.model.job import (
    DEFAULT_ATTEMPTS,
    Job,
    JobState,
    Misfire,
    OnFire,
    new_job,
    new_job_id,
    shown_dedupe_key,
)
from purgatory.jobs.model.limits import JobLimits
from purgatory.json_value import JsonKind, encode_json
from purgatory.operations.watch_key import check_key
from purgatory.timer.clock import Seconds

__all__ = ["JobOptions", "JobSpec", "OnConflict", "Request"]

NAME_LENGTH: Final = 22
"""Characters of `Request.name`."""
MAX_REQUESTS: Final = 100
"""How many requests a store remembers of one job: the last that added, replaced or kept it."""

_Choice = TypeVar("_Choice", bound=StrEnum)


class OnConflict(StrEnum):
    """What `add` does if an undecided job has the same dedupe key."""

    ERROR = "error"
    """Raise DuplicateJobError."""
    REPLACE = "replace"
    """Replace all fields of the waiting job except id, time of creation and ceiling."""
    KEEP = "keep"
    """Leave the waiting job as it is, and return it."""


class JobOptions(TypedDict, total=False):
    """What is asked of a job besides its handler and payload: the named arguments of `defer`.

    One of `delay` and `at` is required; the others have a default. `JobSpec.of` checks them.
    """

    delay: Seconds | None
    """Seconds until its deadline, by the store's clock."""
    at: datetime | None
    """Its deadline, with a time zone."""
    keys: Iterable[str]
    """Watch keys that decide it when they fire. None by default."""
    until: Literal["any", "all"] | int
    """How many of the keys decide it: "any" (the default), "all", or a number of them."""
    on_fire: Literal["run", "cancel"]
    """What happens to it then: "run" (the default), at once, or "cancel"."""
    dedupe_key: str | None
    """One undecided job with it exists at a time."""
    on_conflict: Literal["error", "replace", "keep"]
    """What happens while another job waits with that dedupe key; "error" is the default, and
    without a dedupe key nothing else is allowed."""
    concurrency_key: str | None
    """Jobs with the same one share the `max_running_per_key` of their handler, and without that
    it has no effect."""
    max_attempts: int | None
    """How often it is started at most, if it fails: 10 by default, or what the store allows."""
    misfire: Literal["run", "skip", "spread"]
    """What happens if no worker ran at its deadline; "run" is the default."""
    ceiling: Seconds | None
    """Its deadline is never beyond this many seconds from now, neither the one given here, which an
    earlier ceiling cuts short, nor one to which rescheduling or replacing moves it."""
    idempotency_key: str | None
    """Names this call, so that it can be repeated: the same call again returns the same job,
    whatever has become of it since, and changes nothing, from any process, for as long as the store
    keeps the job (`JobLimits.history_age_ms`, `history_count`)."""


_OPTIONS: Final = JobOptions.__annotations__.keys()


class Request(NamedTuple):
    """What identifies a request to add a job, so that its repeat is recognized."""

    name: str
    """A hash of the idempotency key and its owner: URL-safe characters."""
    fingerprint: str
    """A hash of what is asked for."""


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
    max_attempts: int = DEFAULT_ATTEMPTS
    misfire: Misfire = Misfire.RUN
    ceiling_delay_ms: int | None = None
    """The job's ceiling, in milliseconds from now."""
    request: Request | None = None
    """The request that may be repeated; see `of_request`."""
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
        limits: JobLimits | None = None,
        encode: Callable[[Any, int], str] | None = None,
        **options: Unpack[JobOptions],
    ) -> JobSpec:
        """Return the job for the arguments of `Purgatory.defer`; `wall_ms` only orders its id.

        `encode` returns the payload as JSON of so many bytes at most; `encode_payload` by default.

        Raises InvalidDeadlineError, InvalidPayloadError, InvalidKeyError, InvalidJobError, and
        TypeError for arguments of the wrong type, or an option that does not exist.
        """
        if unknown := options.keys() - _OPTIONS:
            known = ", ".join(sorted(_OPTIONS))
            raise TypeError(f"a job has no option {min(unknown)!r}: the options are {known}")
        limits = JobLimits() if limits is None else limits
        keys = checked_keys(options.get("keys", ()), limits)
        dedupe_key = options.get("dedupe_key")
        ceiling = options.get("ceiling")
        spec = cls(
            id=new_job_id(wall_ms),
            handler=handler_of(handler),
            deadline=Deadline.of(delay=options.get("delay"), at=options.get("at"), limits=limits),
            keys=keys,
            on_fire=on_fire_on(options.get("on_fire", "run"), keys),
            dedupe_key=_owned_key(dedupe_key),
            on_conflict=_on_conflict(options.get("on_conflict", "error"), dedupe_key),
            concurrency_key=_owned_key(options.get("concurrency_key")),
            max_attempts=_max_attempts(options.get("max_attempts"), limits),
            misfire=_choice(Misfire, "misfire", options.get("misfire", "run")),
            ceiling_delay_ms=(
                None if ceiling is None else seconds_to_ms(ceiling, "ceiling", limits)
            ),
            needed=needed_keys(options.get("until", "any"), keys),
            # Last: what is wrong with the payload matters once the rest is right.
            payload_json=(encode or encode_payload)(payload, limits.max_payload_bytes),
        )
        idempotency_key = options.get("idempotency_key")
        if idempotency_key is None:
            return spec
        check_key(idempotency_key)
        # A request of this application, and of no client.
        return spec.of_request(None, idempotency_key)

    def of_request(self, *name: str | int | None, fingerprint: str | None = None) -> JobSpec:
        """Return the same job as that of a request, which stores add once however often it comes.

        `name` identifies the request: who has sent it, None for this application, and its
        idempotency key. No two names are the same unless all of their parts are. `fingerprint` is
        the hash of what is asked for, unless it is given.
        """
        if fingerprint is None:
            fingerprint = _hash(_asked_by(self), 12)
        return replace(self, request=Request(_hash(name, NAME_LENGTH), fingerprint))

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


# All but its id, and what is not stored, or not asked for.
_asked_by = attrgetter(
    *("handler", "payload_json", "deadline.delay_ms", "deadline.at_ms", "keys", "needed"),
    *("on_fire", "dedupe_key", "on_conflict", "concurrency_key", "owner", "max_attempts"),
    *("misfire", "ceiling_delay_ms"),
)


def _hash(values: tuple[Any, ...], length: int) -> str:
    # As JSON, where no two rows of values are written alike.
    digest = sha256(json.dumps(values).encode("ascii")).digest()
    return urlsafe_b64encode(digest).decode("ascii")[:length]


PAYLOAD: Final = JsonKind("payload", "defer", InvalidPayloadError)


def encode_payload(payload: Any, max_bytes: int) -> str:
    """Return `payload` as compact JSON; raise InvalidPayloadError for anything else."""
    return encode_json(payload, PAYLOAD, max_bytes).decode()


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
    if key is not None:
        # An owner before it is not the client's, and takes nothing of its 256 characters.
        check_key(shown_dedupe_key(key) if isinstance(key, str) else key)
    return key


def _max_attempts(max_attempts: int | None, limits: JobLimits) -> int:
    if max_attempts is None:
        return min(DEFAULT_ATTEMPTS, limits.max_attempts)
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
