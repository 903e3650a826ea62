"""The handlers of a process, by name, and what a decorated one is: the function, with `defer`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import update_wrapper
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack, overload

from purgatory.errors import InvalidKeyError, name_of
from purgatory.job_errors import UnknownHandlerError
from purgatory.jobs.handlers.handler import Grid, Handler, HandlerOptions, Series
from purgatory.jobs.handlers.job_context import JobContext
from purgatory.jobs.handlers.payload_type import AnyPayload, PayloadType
from purgatory.jobs.model.job import Job
from purgatory.jobs.model.limits import Bounds
from purgatory.jobs.model.spec import JobOptions
from purgatory.operations.watch_key import check_key
from purgatory.trace_context import TracePropagation

if TYPE_CHECKING:
    from purgatory.jobs.jobs import JobHandle


MAX_NAMES_SHOWN = 20
_NOTHING = nullcontext()


class JobHandlers:
    """The handlers that this process runs, and the names of those that other services run.

    Register a name before jobs of it are deferred: on any thread until the purgatory opens, then on
    the purgatory's own.
    """

    def __init__(self) -> None:
        """Begin without handlers."""
        self._handlers: dict[str, Handler] = {}
        self._elsewhere: set[str] = set()
        self.bounds: tuple[Bounds, ...] = ()
        """The bounds of all handlers that have any."""
        # Invariant: _over_http <= _handlers.keys() | _elsewhere
        self._over_http: set[str] = set()
        self.on_added: Callable[[], object] | None = None
        """Called after a handler was added."""
        self.series: list[Series] = []
        """The periodic handlers."""
        self.on_series: Callable[[], object] | None = None
        """Called after one of them was added."""
        self.around: Callable[[Job], AbstractContextManager[object]] = lambda _: _NOTHING
        """Entered around each run of a handler, for tracing."""
        self.propagation: TracePropagation | None = None
        """Reads the trace context of what is deferred, and of fires that are stored."""
        self.on_deferred: Callable[[str], object] | None = None
        """Called with the id of each job that this process has added, where it was, for tracing."""

    @property
    def own_names(self) -> tuple[str, ...]:
        """The names of the handlers of this process."""
        return tuple(self._handlers)

    def __len__(self) -> int:
        """Return how many handlers this process has."""
        return len(self._handlers)

    @property
    def names(self) -> list[str]:
        """The names that can be deferred, sorted."""
        return sorted(self._handlers.keys() | self._elsewhere)

    def add(
        self,
        name: str,
        function: Callable[..., Any],
        grid: Grid | None = None,
        catch_up: bool = True,
        /,
        **options: Unpack[HandlerOptions],
    ) -> Handler:
        """Register `function` for jobs of that name: called as `function(job[, payload])`.

        If there is a grid, run it at its times. Raises ValueError for an invalid or taken name or
        option, and TypeError for a function that cannot be called so or whose payload type cannot
        be checked; nothing is registered then.
        """
        _check_name(name)
        if name in self._handlers:
            raise ValueError(f"handler {name!r} is registered already: give this one another name")
        handler = Handler(name, function, **options)
        if grid is not None:
            if handler.needs_payload:
                raise TypeError(f"handler {name!r} is periodic: it has to take (job) only")
            handler.series = Series(handler, grid, catch_up)
        self._handlers[name] = handler
        if handler.bounds is not None:
            self.bounds = (*self.bounds, handler.bounds)
        if options.get("http", False):
            self._over_http.add(name)
        if self.on_added is not None:
            self.on_added()
        if handler.series is not None:
            self.series.append(handler.series)
            if self.on_series is not None:
                self.on_series()
        return handler

    def expect(self, names: Iterable[str], *, http: bool = False) -> None:
        """Accept jobs of these names, which another service on the same store runs.

        `http` as in `add`.
        """
        if isinstance(names, str):
            raise TypeError(f"names is the string {names!r}: give a list of names")
        for name in names:
            _check_name(name)
            self._elsewhere.add(name)
            if http:
                self._over_http.add(name)

    @property
    def http_names(self) -> list[str]:
        """The names that requests may use, sorted."""
        return sorted(self._over_http)

    def require_http(self, name: str) -> None:
        """Raise UnknownHandlerError, the same for both, unless requests may use a known name."""
        if name not in self._over_http:
            raise UnknownHandlerError(
                f"there is no handler {str(name)[:64]!r} for requests; known: "
                f"{_shown(self.http_names)}. Allow one with @purgatory.handler(..., http=True), or "
                "purgatory.handled_elsewhere([...], http=True) (in the service, "
                "PURGATORY_JOB_HANDLERS) if another service runs it"
            )

    def knows(self, name: str) -> bool:
        """Return True iff this process has the handler, or another service is said to have it."""
        return name in self._handlers or name in self._elsewhere

    def get(self, name: str) -> Handler | None:
        """Return the handler of that name, or None if this process has none."""
        return self._handlers.get(name)

    def payload_of(self, name: str) -> PayloadType:
        """Return the payload type of handler `name`; raise UnknownHandlerError."""
        handler = self._handlers.get(name)
        if handler is not None:
            return handler.payload
        if name in self._elsewhere:
            # The other service checks the payload before it calls its function.
            return AnyPayload()
        raise UnknownHandlerError(
            f"there is no handler {str(name)[:64]!r}; known: {_shown(self.names)}. Register it "
            "with @purgatory.handler(...), or name it in purgatory.handled_elsewhere([...]) if "
            "another service runs it"
        )

    async def close(self) -> None:
        """Close every handler that can be closed; then raise what one of them raised."""
        async with AsyncExitStack() as stack:
            for handler in self._handlers.values():
                stack.push_async_callback(handler.close)


def handler_name(function: Callable[..., Any]) -> str:
    """Return the name of a function; raise TypeError if it has none of its own."""
    name: str = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise TypeError(
            f"{name_of(function)} has no name of its own: register it with "
            "@purgatory.handler('a-name')"
        )
    return name


def _shown(names: list[str]) -> str:
    return ", ".join(map(repr, names[:MAX_NAMES_SHOWN])) or "none"


def _check_name(name: str) -> None:
    try:
        check_key(name)
    except InvalidKeyError as exc:
        raise ValueError(f"{str(name)[:64]!r} is not a name for a handler: {exc.detail}") from exc


Payload = TypeVar("Payload")
Payload_contra = TypeVar("Payload_contra", contravariant=True)
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class JobFunction(Generic[Payload, Result]):
    """A function that jobs call, made by `@purgatory.handler`: call it, or defer it.

        await cancel_order.defer(CancelOrder(order=42), delay=timedelta(minutes=15))

    Type checkers refuse a payload that is not of the type that the function takes.
    """

    def __init__(
        self,
        function: Callable[..., Result],
        handler: Handler,
        defer: Callable[..., Awaitable[JobHandle]],
    ) -> None:
        """Wrap the function of a registered handler; `defer` is that of its purgatory."""
        # Without the attributes of an object, which a Webhook is.
        update_wrapper(self, function, updated=())
        self.function = function
        """The function itself."""
        self.name = handler.name
        """The name of its jobs."""
        self._defer = defer
        called: Any = function
        # Starlette and FastAPI await what a call returns iff this is a coroutine function.
        self.__call__ = called if iscoroutinefunction(called) else called.__call__  # type: ignore[method-assign] # they look it up in the object

    def __call__(self, *arguments: Any, **keywords: Any) -> Result:
        """Call the function, as a test does."""
        return self.function(*arguments, **keywords)

    def __repr__(self) -> str:
        """Show the name."""
        return f"<{type(self).__name__} {self.name!r}>"

    async def defer(
        self,
        payload: Payload,
        *,
        since: str | Mapping[str, str] | None = None,
        session: object | None = None,
        **options: Unpack[JobOptions],
    ) -> JobHandle:
        """Add a job that calls the function; see `Purgatory.defer`."""
        return await self._defer(self.name, payload, since=since, session=session, **options)


class OptionalJobFunction(JobFunction[Payload, Result]):
    """One whose jobs need no payload: of a function of (job), or (job, payload=default)."""

    async def defer(
        self,
        payload: Payload | None = None,
        *,
        since: str | Mapping[str, str] | None = None,
        session: object | None = None,
        **options: Unpack[JobOptions],
    ) -> JobHandle:
        """Add a job that calls the function; see `Purgatory.defer`."""
        return await self._defer(self.name, payload, since=since, session=session, **options)


class OptionalFunction(Protocol[Payload_contra, Result_co]):
    """A function of (job, payload=default)."""

    def __call__(self, job: JobContext, payload: Payload_contra = ..., /) -> Result_co:
        """Run a job."""
        ...


class HandlerDecorator(Protocol):
    """What `@purgatory.handler(...)` is applied to, and makes of it."""

    # In this order: a function with a default fits all three.
    @overload
    def __call__(  # type: ignore[overload-overlap] # the first that fits counts
        self, function: OptionalFunction[Payload, Result], /
    ) -> OptionalJobFunction[Payload, Result]: ...
    @overload
    def __call__(
        self, function: Callable[[JobContext, Payload], Result], /
    ) -> JobFunction[Payload, Result]: ...
    @overload
    def __call__(
        self, function: Callable[[JobContext], Result], /
    ) -> OptionalJobFunction[None, Result]: ...


def job_function(
    function: Callable[..., Any],
    handler: Handler,
    defer: Callable[..., Awaitable[JobHandle]],
) -> JobFunction[Any, Any]:
    """Return what a registered function is replaced by."""
    kind = JobFunction if handler.needs_payload else OptionalJobFunction
    return kind(function, handler, defer)
