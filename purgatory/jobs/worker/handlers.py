"""The functions that jobs run, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar, get_type_hints

from purgatory.errors import InvalidKeyError
from purgatory.jobs.model.errors import UnknownHandlerError
from purgatory.jobs.model.job import Job
from purgatory.jobs.worker.context import JobContext
from purgatory.jobs.worker.payload_type import AnyPayload, PayloadType, payload_type
from purgatory.jobs.worker.threads import JobThreads
from purgatory.operations.watch_key import check_key

Function = TypeVar("Function", bound=Callable[..., Any])

# Names in an error, at most.
_SHOWN = 20


class Handler:
    """One registered function, and what its payload is."""

    __slots__ = ("_function", "_takes_payload", "is_async", "name", "payload")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        """Look at the function's parameters; raise TypeError unless they are (job[, payload])."""
        self.name = name
        self._function = function
        called = _called(function)
        self.is_async: bool = inspect.iscoroutinefunction(called)
        parameters = _parameters(name, function)
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise TypeError(
                f"handler {name!r} is {function!r}: calling what has a yield only makes a "
                "generator, and runs nothing of it; take the yield out, or run it in a handler"
            )
        self._takes_payload: bool = len(parameters) == 2
        self.payload: PayloadType = AnyPayload()
        if self._takes_payload and parameters[1].annotation is not inspect.Parameter.empty:
            self.payload = payload_type(_annotation(name, called, parameters[1]))

    async def run(self, job: Job, threads: JobThreads) -> None:
        """Call the function, in a thread unless it is async; raise what it raises.

        What is to be awaited of what a thread returns is awaited here.
        Cancelled while the thread is at work, it raises ThreadLeftError.
        """
        arguments: list[Any] = [JobContext.of(job)]
        if self._takes_payload:
            arguments.append(self.payload.decode(job.payload_json))
        if self.is_async:
            await self._function(*arguments)
            return
        result = await threads.run(self._function, *arguments)
        if inspect.isawaitable(result):
            # A lambda or a decorator around an async function does not show that it is one.
            await result

    async def close(self) -> None:
        """Close a handler that has something to close: an object with `aclose`."""
        close = getattr(self._function, "aclose", None)
        if close is not None:
            await close()


class JobHandlers:
    """The handlers that this process runs, and the names of those that others run.

    Register before jobs of that name are deferred; on any thread before the purgatory opens, on its
    own from then on.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._handlers: dict[str, Handler] = {}
        self._elsewhere: set[str] = set()
        self.on_added: Callable[[], object] | None = None
        """Called when there is another one."""

    def __contains__(self, name: object) -> bool:
        """Return True iff this process runs jobs of that name."""
        return name in self._handlers

    def __len__(self) -> int:
        """Return how many handlers this process has."""
        return len(self._handlers)

    @property
    def names(self) -> list[str]:
        """The names that can be deferred, in order."""
        return sorted(self._handlers.keys() | self._elsewhere)

    def add(self, name: str, function: Callable[..., Any]) -> None:
        """Let jobs of that name call `function(job, payload)`, or `function(job)`.

        Raises ValueError for a name that is taken or none, and TypeError for a function that cannot
        be called so or whose payload nothing here can check.
        """
        _check_name(name)
        if name in self._handlers:
            raise ValueError(f"handler {name!r} is registered already: give this one another name")
        self._handlers[name] = Handler(name, function)
        if self.on_added is not None:
            self.on_added()

    def handler(self, name: str) -> Callable[[Function], Function]:
        """Return a decorator that registers a function under `name`, and returns it as it is."""

        def register(function: Function) -> Function:
            self.add(name, function)
            return function

        return register

    def expect(self, names: Iterable[str]) -> None:
        """Accept jobs of these names, which another service runs on the same store."""
        if isinstance(names, str):
            raise TypeError(f"names is the string {names!r}: give a list of names")
        for name in names:
            _check_name(name)
            self._elsewhere.add(name)

    def get(self, name: str) -> Handler | None:
        """Return the handler of that name, or None where this process has none."""
        return self._handlers.get(name)

    def payload_of(self, name: str) -> PayloadType:
        """Return what checks a payload for `name`; raise UnknownHandlerError."""
        handler = self._handlers.get(name)
        if handler is not None:
            return handler.payload
        if name in self._elsewhere:
            # That service checks it, before it calls its function.
            return AnyPayload()
        known = ", ".join(repr(known) for known in self.names[:_SHOWN]) or "none"
        raise UnknownHandlerError(
            f"there is no handler {str(name)[:64]!r}; known: {known}. Register it with "
            "@purgatory.handler(...), or name it in purgatory.handled_elsewhere([...]) where "
            "another service runs it"
        )

    async def close(self) -> None:
        """Close what handlers have open: all of it, and then raise what one of them raised."""
        async with AsyncExitStack() as stack:
            for handler in self._handlers.values():
                stack.push_async_callback(handler.close)


def _check_name(name: str) -> None:
    try:
        check_key(name)
    except InvalidKeyError as exc:
        raise ValueError(f"{str(name)[:64]!r} is no name for a handler: {exc.detail}") from exc


def _called(function: Callable[..., Any]) -> Any:
    """Return the function that is called in the end, which is the one with annotations."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    wanted = f"handler {name!r} is {function!r}: it has to take (job, payload), or (job) only"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as exc:
        raise TypeError(wanted) from exc
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [
        parameter
        for parameter in parameters
        if parameter.kind in positional and parameter.default is inspect.Parameter.empty
    ]
    keyword_only = [
        parameter
        for parameter in parameters
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        and parameter.default is inspect.Parameter.empty
    ]
    if not 1 <= len(needed) <= 2 or keyword_only:
        raise TypeError(wanted)
    return needed


def _annotation(name: str, called: Any, parameter: inspect.Parameter) -> Any:
    try:
        return get_type_hints(called, include_extras=True)[parameter.name]
    except NameError as exc:
        # Postponed annotations name what only the function around it knows.
        raise TypeError(
            f"handler {name!r}: its payload's type {parameter.annotation!r} is not known in its "
            f"module ({exc}): define the type at the top of the module"
        ) from exc
