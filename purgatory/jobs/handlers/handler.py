"""One registered handler: its function, its payload type, its times."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypedDict, Unpack, cast, get_type_hints

from purgatory.errors import name_of
from purgatory.job_errors import (
    FailJobError,
    HandlerTimeoutError,
    InvalidPayloadError,
    RetryJobError,
)
from purgatory.jobs.handlers.fair_slots import Lane
from purgatory.jobs.handlers.job_context import JobContext
from purgatory.jobs.handlers.payload_type import (
    NULL,
    AnyPayload,
    NoPayload,
    OptionalPayload,
    PayloadType,
    payload_type,
)
from purgatory.jobs.handlers.threads import DaemonThreads
from purgatory.jobs.model.deadline import utc
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.limits import Bounds
from purgatory.operations.watch_key import check_key
from purgatory.retry_policy import RetryPolicy
from purgatory.timer.clock import Seconds, seconds_of

logger = logging.getLogger("purgatory.jobs")

MIN_EVERY_MS: Final = 1_000
MAX_EVERY_MS: Final = 366 * 24 * 3_600 * 1_000

MARK: Final = "purgatory:periodic"
"""The concurrency key of every run, by which they are listed."""


class Grid(Protocol):
    """The times of a series; `str` describes them."""

    def after(self, wall_ms: int) -> int:
        """Return the first time that is later than `wall_ms`, in wall milliseconds."""
        ...


@dataclass(frozen=True, slots=True)
class EveryGrid:
    """Times at one distance, counted from 1970-01-01 UTC plus a phase: the same everywhere."""

    every_ms: int
    phase_ms: int = 0

    @classmethod
    def of(cls, every: Seconds, phase: Seconds) -> EveryGrid:
        """Return the grid of a distance and a phase; raise ValueError."""
        every_ms, phase_ms = (round(seconds_of(each) * 1_000) for each in (every, phase))
        if not MIN_EVERY_MS <= every_ms <= MAX_EVERY_MS or not 0 <= phase_ms < every_ms:
            raise ValueError(
                f"every is {every!r} and phase is {phase!r}: give seconds from 1 to a year, and a "
                "phase from 0 up to less than that"
            )
        return cls(every_ms, phase_ms)

    def after(self, wall_ms: int) -> int:
        """Return the first time that is later than `wall_ms`, in wall milliseconds."""
        return wall_ms + self.every_ms - (wall_ms - self.phase_ms) % self.every_ms

    def __str__(self) -> str:
        """Name the distance, and the phase if there is one."""
        phase = f", phase {self.phase_ms / 1_000:g} s" if self.phase_ms else ""
        return f"every {self.every_ms / 1_000:g} s{phase}"


@dataclass(slots=True)
class Series:
    """A handler that runs at the times of a grid."""

    handler: Handler
    grid: Grid
    catch_up: bool
    """A run that no process has started at its time is started later; else it is missed."""
    look_ms: int = 0
    """When to store the run after the one that is stored."""
    stored_ms: int = 0
    """The time of the run that was stored last; 0 before the first look."""
    refused: str | None = None
    """Why the store does not take the next run."""
    on_run: Callable[[], object] = lambda: None
    """Called as one of its runs begins here."""

    def __post_init__(self) -> None:
        """Raise InvalidKeyError for a name that leaves no room for a time."""
        check_key(self.request_key(10**13))

    @property
    def dedupe_key(self) -> str:
        """What all of its runs share."""
        return _key_of(self.handler.name)

    def request_key(self, at_ms: int) -> str:
        """Return the idempotency key of one run."""
        return f"{self.dedupe_key}:{at_ms}"


class RunTime(NamedTuple):
    """What the payload of a run says."""

    at_ms: int
    """The time of the series that it is for."""
    since_ms: int
    """When the process that stored it began: of two versions, the later one decides."""
    next_ms: int
    """The time after it."""
    grid: str


def run_time(job: Job) -> RunTime | None:
    """Return what a run of a series is for; None for any other job."""
    if job.dedupe_key != _key_of(job.handler) or job.owner is not None:
        return None
    match job.payload:
        case {"at": int(at_ms), "since": int(since_ms), "next": int(next_ms), "grid": str(grid)}:
            return RunTime(at_ms, since_ms, next_ms, grid)
    return None


def _key_of(handler: str) -> str:
    return f"{MARK}:{handler}"


Errors = type[BaseException] | tuple[type[BaseException], ...]


class HandlerOptions(TypedDict, total=False):
    """How jobs of a handler are run: the named arguments of `Purgatory.handler`, each optional."""

    http: bool
    """Requests to `POST /jobs` may name it; without, it is for `defer` only."""
    max_running: int | None
    """How many of its jobs run at once, in all processes on the store; None is no bound."""
    max_running_per_key: int | None
    """The same for jobs with the same `concurrency_key`."""
    max_attempts: int | None
    """How often a job is started at most, if it fails: for jobs that a process with this handler
    defers without a `max_attempts` of their own."""
    retry: RetryPolicy | None
    """The pauses between attempts; None for those of `WorkerSettings.retry`."""
    retried_errors: Errors
    """The errors after which a job is tried again; all by default. Others fail it at once."""
    final_errors: Errors
    """The errors that fail a job at once, also if they are among `retried_errors`."""
    timeout: Seconds | None
    """How long an attempt may take. Then the handler is cancelled, and the attempt has failed with
    HandlerTimeoutError. Only for `async` functions: a thread cannot be stopped."""


_OPTIONS = HandlerOptions.__annotations__.keys()


class Handler:
    """A function, how it is called, and what its payload is."""

    def __init__(
        self, name: str, function: Callable[..., Any], **options: Unpack[HandlerOptions]
    ) -> None:
        """Inspect the function; raise TypeError unless its parameters are (job[, payload]).

        Raises TypeError and ValueError for an option that cannot be.
        """
        if unknown := options.keys() - _OPTIONS:
            known = ", ".join(sorted(_OPTIONS))
            raise TypeError(f"a handler has no option {min(unknown)!r}: the options are {known}")
        self.name = name
        self.bounds = _bounds(name, options)
        self.max_attempts = _count(name, options, "max_attempts", "starts")
        self.retry = _retry(name, options)
        self.series: Series | None = None
        """When it runs, if it is periodic."""
        self._retried_errors = _errors(name, options, "retried_errors", BaseException)
        self._final_errors = _errors(name, options, "final_errors", ())
        self._timeout_s = _timeout_s(name, options)
        self._function = function
        called = _called(function)
        self.is_async: bool = inspect.iscoroutinefunction(called)
        parameters = _parameters(name, function)
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise TypeError(
                f"handler {name!r} is the generator function {name_of(function)}: calling it "
                "runs none of its body; remove the yield, or iterate over it in a handler"
            )
        self._takes_payload: bool = len(parameters) == 2
        # The payload for which the function is called with its own default.
        self._default_for: str | None = None
        self._lane_of: Callable[[Job], Lane] | None = getattr(function, "lane_of", None)
        self.payload: PayloadType = NoPayload(name)
        if self._takes_payload:
            # As a Webhook has. Named so that no attribute of an application is taken for one.
            own = getattr(function, "purgatory_payload_type", None)
            self.payload = _payload_type(name, called, parameters[1]) if own is None else own()
            if parameters[1].default is not inspect.Parameter.empty:
                self.payload, self._default_for = OptionalPayload(self.payload), NULL
        self._has_warned = False
        if self._timeout_s is not None and not self.is_async:
            raise TypeError(
                f"handler {name!r} has a timeout and is not async: what runs in a thread cannot be "
                "stopped; declare it with async def, or limit what it waits for"
            )

    @property
    def needs_payload(self) -> bool:
        """True iff it cannot be called without a payload."""
        return self._takes_payload and self._default_for is None

    def is_final(self, error: BaseException) -> bool:
        """Return True iff a job that failed with `error` is not tried again."""
        if isinstance(error, RetryJobError | FailJobError):
            return isinstance(error, FailJobError)
        if isinstance(error, InvalidPayloadError) and error.is_stored:
            # A deploy may bring the handler that it fits. As a ValueError it is none of those that
            # the function raises.
            return InvalidPayloadError in self._final_errors
        is_retried = isinstance(error, self._retried_errors)
        return not is_retried or isinstance(error, self._final_errors)

    async def run(
        self, job: Job, threads: DaemonThreads, *, before_call: Callable[[], object] = lambda: None
    ) -> Any:
        """Return what the function returns, called in a thread unless it is async.

        `before_call` is called right before the function, in its thread; what it raises prevents
        the call. An awaitable that a thread returns is awaited here. Raises what the function
        raises, and ThreadLeftError if cancelled while the thread runs.
        """
        arguments: list[Any] = [JobContext.of(job)]
        if self.series is not None and (run := run_time(job)) is not None:
            self.series.on_run()
            # The store may have had it a moment after that.
            arguments = [replace(arguments[0], deadline=utc(run.at_ms))]
        elif not self._takes_payload:
            self._warn_of_payload(job)
        elif job.payload_json != self._default_for:
            arguments.append(self._decoded(job.payload_json))
        if self.is_async:
            before_call()
            if self._timeout_s is None:
                return await self._function(*arguments)
            return await self._run_in_time(job, arguments)

        def call() -> Any:
            before_call()
            return self._function(*arguments)

        result = await threads.run(call)
        if inspect.isawaitable(result):
            # A lambda or a decorator around an async function does not show that it is one.
            return await result
        return result

    async def _run_in_time(self, job: Job, arguments: list[Any]) -> Any:
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                return await self._function(*arguments)
        except TimeoutError as exc:
            if not limit.expired():
                # One of the handler's own.
                raise
            raise HandlerTimeoutError(
                f"handler {self.name!r} was cancelled, as attempt {job.attempt} took longer than "
                f"its timeout of {self._timeout_s:g} s"
            ) from exc

    def _decoded(self, payload_json: str) -> Any:
        try:
            return self.payload.decode(payload_json)
        except InvalidPayloadError as exc:
            exc.is_stored = True
            raise

    def lane_of(self, job: Job) -> Lane | None:
        """Return where a job waits for the handler's own slots; None if it has none.

        Slots of its own has a handler that is an object with a method `lane_of`.
        """
        return None if self._lane_of is None else self._lane_of(job)

    def _warn_of_payload(self, job: Job) -> None:
        if job.payload_json == NULL or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "job %s has a payload, and its handler %r is a function of (job), which does not get "
            "it: declare it as (job, payload); this is said once",
            job.id,
            self.name,
            extra={"action": "payload-dropped"},
        )

    async def close(self) -> None:
        """Call the `aclose` of a handler that is an object with one."""
        close = getattr(self._function, "aclose", None)
        if close is not None:
            await close()


def _bounds(name: str, options: HandlerOptions) -> Bounds | None:
    found = [
        _count(name, options, option, "jobs", "; to run none, pause the handler")
        for option in ("max_running", "max_running_per_key")
    ]
    return None if found == [None, None] else Bounds(name, *found)


def _count(
    name: str, options: HandlerOptions, option: str, what: str, hint: str = ""
) -> int | None:
    value = cast("int | None", options.get(option))
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(
            f"{option} of handler {name!r} is {value!r}: give a number of {what} from 1{hint}"
        )
    return value


def _retry(name: str, options: HandlerOptions) -> RetryPolicy | None:
    retry: Any = options.get("retry")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise TypeError(
            f"retry of handler {name!r} is {retry!r}: give a RetryPolicy, which has the pauses; "
            "max_attempts= says how often"
        )
    found: RetryPolicy | None = retry
    return found


def _errors(
    name: str, options: HandlerOptions, option: str, default: Errors
) -> tuple[type[BaseException], ...]:
    errors: Any = options.get(option, default)
    try:
        # As an `except` would be; a wrong one would first be noticed with the first error.
        issubclass(Exception, errors)
    except TypeError as exc:
        raise TypeError(
            f"{option} of handler {name!r} is {errors!r}: give a class of errors, or a tuple of "
            "classes"
        ) from exc
    return errors if isinstance(errors, tuple) else (errors,)


def _timeout_s(name: str, options: HandlerOptions) -> float | None:
    seconds = seconds_of(options.get("timeout"))
    # Written so that NaN, which compares as false, is refused.
    if seconds is not None and not 0 < seconds < float("inf"):
        raise ValueError(f"timeout of handler {name!r} is {seconds!r}: give seconds above zero")
    return seconds


def _called(function: Callable[..., Any]) -> Any:
    """Return the function that is called in the end, which has the annotations."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    wanted = (
        f"handler {name!r} is {name_of(function)}: it has to take (job, payload), or (job) only"
    )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as exc:
        raise TypeError(wanted) from exc
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [each for each in parameters if each.default is inspect.Parameter.empty]
    needed = [each for each in required if each.kind in positional]
    keywords = [each.name for each in required if each.kind is inspect.Parameter.KEYWORD_ONLY]
    if keywords:
        raise TypeError(f"{wanted}; its keyword-only {keywords[0]!r} needs a default")
    if not 1 <= len(needed) <= 2:
        raise TypeError(wanted)
    return [each for each in parameters if each.kind in positional][:2]


def _payload_type(name: str, called: Any, parameter: inspect.Parameter) -> PayloadType:
    if parameter.annotation is inspect.Parameter.empty:
        return AnyPayload()
    try:
        return payload_type(_annotation(name, called, parameter))
    except TypeError as exc:
        if parameter.default is inspect.Parameter.empty:
            raise
        raise TypeError(
            f"{exc}. Handler {name!r} gets the payload as {parameter.name!r}, although that has a "
            "default: if it is something else, write it after a *, so that it is keyword-only"
        ) from exc


def _annotation(name: str, called: Any, parameter: inspect.Parameter) -> Any:
    try:
        hints = get_type_hints(called, include_extras=True)
    except NameError as exc:
        # A postponed annotation may use a name that exists only in the enclosing function.
        raise TypeError(
            f"handler {name!r}: its payload's type {parameter.annotation!r} is not known in its "
            f"module ({exc}): define the type at the top of the module"
        ) from exc
    # Classes, and functions with a `__signature__` of their own, have it there only.
    found = hints.get(parameter.name, parameter.annotation)
    if isinstance(found, str):
        raise TypeError(
            f"handler {name!r}: its payload's type is the text {found!r}: give the type"
        )
    return found
