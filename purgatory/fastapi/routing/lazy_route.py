"""Routes that FastAPI builds when something reads of them what it builds."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from threading import RLock
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.routing import compile_path

_BUILDING: Final = RLock()


class LazyRoute(APIRoute):
    """A route whose parameters, models and dependencies are built for OpenAPI only.

    FastAPI builds a parser for each parameter and model, which takes most of a millisecond a route,
    and builds it again where the router is included. A subclass that does not parse by FastAPI
    needs these for OpenAPI alone, and many processes never serve that.

    Called by FastAPI, on any thread. Every attribute that a constructed APIRoute has can be read.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Take what `APIRoute` takes, and keep it for later."""
        # Read by an inclusion, and not among the options of every version.
        self.stream_item_type = None
        self.max_body_size = None
        # As they were given: what an inclusion reads in order to build another route.
        self.__dict__.update(options)
        self.path = path
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self.endpoint = endpoint
        self.name = options.get("name") or endpoint.__name__
        self.methods = {method.upper() for method in options["methods"]}
        self._options: dict[str, Any] | None = options
        self._unchanged = dict(vars(self))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that FastAPI builds."""
        # Called only for what is missing, and by the build itself if that probes for something.
        with _BUILDING:
            options = vars(self).get("_options")
            if options is not None:
                self._build(options)
            return object.__getattribute__(self, name)

    def _build(self, options: dict[str, Any]) -> None:
        unchanged = vars(self).pop("_unchanged")
        # Of an application that sets the ids of its operations, say: FastAPI's docs have a recipe.
        changed = {
            name: value for name, value in vars(self).items() if unchanged.get(name) is not value
        }
        self._options = None
        super().__init__(self.path, self.endpoint, **options)
        self.__dict__.update(changed)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what FastAPI would call, if the route did not handle requests otherwise."""
        return _never_called


async def _never_called(request: Request) -> Response:
    raise AssertionError("a LazyRoute handles requests itself")
