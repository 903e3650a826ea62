"""What a decorated handler is: the function, with a typed `defer`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import update_wrapper
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack, overload

from purgatory.jobs.handlers.handler import Handler
from purgatory.jobs.handlers.job_context import JobContext
from purgatory.jobs.model.spec import JobOptions

if TYPE_CHECKING:
    from purgatory.jobs.jobs import JobHandle

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
