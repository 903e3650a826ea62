"""Raw endpoints: admission of a request by its head, and responses without FastAPI."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Protocol

from fastapi import Body
from pydantic import BaseModel
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.types import Receive, Scope, Send

from purgatory.errors import PurgatoryClosedError
from purgatory.fastapi.http.asgi import Resumed, Stream, finish_in_task, send_or_give_up
from purgatory.fastapi.http.bounds import (
    IncomingRequests,
    UnreadResponses,
    body_too_large,
    read_body,
)
from purgatory.fastapi.http.errors import problem_of_exception
from purgatory.fastapi.http.json_bodies import JsonBody
from purgatory.fastapi.http.parameters import HeadParser
from purgatory.fastapi.http.requests import (
    ALLOW_ANYONE,
    Access,
    AsgiRequest,
    Authenticate,
    RawRequest,
)
from purgatory.fastapi.http.responses import CLOSE, Problem, RawResponse
from purgatory.operations.delayed_operation import DelayedOperation
from purgatory.purgatory import Purgatory

DEFAULT_PREFIX: Final = "/purgatory"


class _KeyConvertor(PathConvertor):
    # Starlette's own ends at a newline: a key with one would not be found, or be taken for another.
    regex = "(?s:.*)"


register_url_convertor("watch_key", _KeyConvertor())


@dataclass(frozen=True, slots=True)
class EndpointContext:
    """The purgatory that the endpoints of a router serve, their address and access check."""

    purgatory: Purgatory
    prefix: str = DEFAULT_PREFIX
    """The path before every endpoint and every problem type."""
    authenticate: Authenticate = ALLOW_ANYONE
    """Returns the permit of a request; raises Problem 401."""
    bypass_middleware: bool = False
    """True iff requests may be served without the application's middleware."""
    incoming: IncomingRequests = field(default_factory=IncomingRequests)
    """The requests of all these endpoints that have not arrived completely."""
    unread: UnreadResponses = field(default_factory=UnreadResponses)
    """The responses of all these endpoints that have not been sent completely."""


CONTEXT_STATE_KEY: Final = "purgatory_context"
"""Key of an EndpointContext in the state of the lifespan, for servers that read and write."""

# Sent without a preflight (Fetch: CORS-safelisted request header).
_OF_FORMS: Final = frozenset(
    {"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"}
)
_ALLOWED: Final = "application/json, or another type that forms do not have"
_WAY_OUT: Final = (
    "send Content-Type: application/json; with curl -d, add -H 'Content-Type: application/json'"
)


def refuse_cross_site(raw: RawRequest) -> None:
    """Raise Problem for a body of a type that pages of any site may send; JSON, and none, are fine.

    Without tokens, a page could fire keys through the browser of its reader, which may be inside
    the network of the service. For a Content-Type that forms do not have, the browser sends a
    preflight first (CORS). A page can also send no Content-Type, but then the browser says where it
    is from.
    """
    header = raw.header(b"content-type") or ""
    if header == "application/json":
        # So say most requests.
        return
    media_type = header.partition(";")[0].strip(" \t").lower()
    if media_type in _OF_FORMS:
        said = f"Content-Type is {header[:64]!r}, which a page of any web site can send"
    elif not media_type and _is_cross_site(raw):
        said = "there is no Content-Type, and the request is from a page of another web site"
    else:
        return
    raise Problem(
        "unsupported-media-type", f"{said}: {_WAY_OUT}", param="Content-Type", allowed=_ALLOWED
    )


def _is_cross_site(raw: RawRequest) -> bool:
    """Return True iff the headers of a browser name another site."""
    # It holds even behind proxies that change the Host, and if there is no Origin.
    site = raw.header(b"sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = raw.header(b"origin")
    return origin is not None and origin.partition("://")[2] != raw.header(b"host")


_NO_ENCODING: Final = frozenset({"identity", ""})
# Of one header: what follows is none of the above.
MAX_CODINGS: Final = 10
_ENCODING: Final = frozenset({b"content-encoding"})
_EXPECT: Final = frozenset({b"expect"})
_ORIGINS: Final = frozenset({b"content-type", b"origin", b"sec-fetch-site"})


def check_content(raw: RawRequest) -> None:
    """Raise Problem for headers that any web page may send, and for those of a compressed body."""
    if raw.has_any(_ORIGINS):
        refuse_cross_site(raw)
    if raw.has_any(_ENCODING):
        _refuse_encodings(raw)


def _refuse_encodings(raw: RawRequest) -> None:
    # Decompression would need a bound of its own, for bodies that are small as a rule.
    lines = raw.headers_named(b"content-encoding")
    said = ", ".join(lines)
    if {coding.strip(" \t").lower() for coding in said.split(",", MAX_CODINGS)} <= _NO_ENCODING:
        return
    raise Problem(
        "unsupported-media-type",
        f"Content-Encoding is {said[:64]!r}, which is not supported: send the body as it is",
        headers={"Accept-Encoding": "identity"},
        param="Content-Encoding",
        allowed="identity, or left out",
    )


class AdmittingEndpoint(ABC):
    """An endpoint that refuses requests by their head alone, whatever the server interface.

    FastAPI has it for the function of a route, which its signature describes, and which is never
    called: requests are handed over as those of an ASGI application.
    """

    allows_head = False
    """True iff HEAD is served like GET: servers leave out the body."""
    is_fast = False
    """True iff its requests may go past FastAPI, and be served on a Connection."""
    needs_client = False
    """True iff `begin` reads the address of the client."""
    needs_scope = False
    """True iff it is only for ASGI requests."""

    def __init__(
        self,
        context: EndpointContext,
        method: str,
        function: Callable[..., Any],
        access: Access | None,
        *,
        body: JsonBody[Any] | None = None,
        max_body: int = 0,
        admits_whole_head: bool = True,
    ) -> None:
        """Let clients that have `access` make requests; None: let anyone.

        `function` has FastAPI's annotations of the parameters, and a parameter `body` if there is
        one in JSON. `max_body` is for a body that is not JSON. Without `admits_whole_head`, the
        endpoint itself checks its parameters and the access to its key.
        """
        self.context = context
        self.method = method
        self.methods = [method]
        """Those of all endpoints at its path."""
        self.route_options: dict[str, Any] = {}
        """What FastAPI takes for its route besides the path."""
        self.access = access
        # By these, FastAPI makes OpenAPI.
        self.__name__ = function.__name__
        self.__doc__ = inspect.cleandoc(function.__doc__ or "")
        self.__signature__ = _signature(function, body)
        self._head = HeadParser(self.__signature__)
        self.path_parameter = self._head.path_parameter
        self.body = body
        self.max_body = max_body if body is None else body.max_bytes
        self.accesses_of_lines: Callable[[bytes], Awaitable[list[Access]]] | None = None
        """Returns the further access that a body of JSON Lines needs."""
        self.check_ready: Callable[[], object] = self._require_open
        """Raises an error if what reads a body cannot work."""
        # Also a POST that needs no body refuses one of the wrong kind.
        self._takes_content = method in ("PATCH", "POST")
        self._admits_whole_head = admits_whole_head

    def admit(self, raw: RawRequest, size: int = 0) -> RawResponse | None:
        """Set the permit and the parameters of a request; return the response if it is refused.

        `size` is that of the body, if known: what is in it is checked once that has been read.
        """
        try:
            if self.access is not None:
                raw.permit = self.context.authenticate(raw)
            if self._takes_content:
                raw.find(check_content)
            if size > self.max_body:
                raise body_too_large(self.max_body)
            if self._admits_whole_head:
                if self.access is not None:
                    self._check_access(raw, self.access)
                raw.values = self._head.parse(raw)
            if self.max_body:
                self.check_ready()
        except Exception as exc:
            return self.error_response(raw, exc)
        return None

    def admit_unread(self, raw: RawRequest) -> RawResponse | None:
        """Admit a request whose body is not read, as `admit` does."""
        refused = self.admit(raw)
        if refused is not None and raw.has_any(_EXPECT) and not refused.is_last:
            # What comes next may be the body that was not asked for, or another request.
            refused.add_lines(CLOSE)
        return refused

    # Not async: a parked request would keep one frame more.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return what responds to one request, to be awaited."""
        value = scope["path_params"][self.path_parameter] if self.path_parameter else ""
        return self.serve(AsgiRequest(scope, str(value)), receive, send)

    @abstractmethod
    def serve(self, raw: AsgiRequest, receive: Receive, send: Send) -> Awaitable[None]:
        """Return what responds to one request, to be awaited."""

    @abstractmethod
    def begin(self, raw: RawRequest, connection: Connection) -> DelayedOperation | None:
        """Respond on `connection` to an admitted request with its body, now or later.

        Returns the wait, if it parks: to be abandoned when the client leaves.
        """

    async def read_body(self, raw: AsgiRequest, receive: Receive) -> RawResponse | None:
        """Read the body of an admitted request; return the response if it is refused."""
        if self.max_body:
            try:
                raw.body = await read_body(raw.scope, receive, self.max_body, self.context.incoming)
            except Problem as problem:
                return self.error_response(raw, problem)
        return None

    def error_response(self, raw: RawRequest, error: Exception) -> RawResponse:
        """Return the response to a request that failed with `error`."""
        problem = problem_of_exception(error, self.method, raw.path)
        return problem.response(self.context.prefix, raw.path)

    def _require_open(self) -> None:
        if not self.context.purgatory.is_open:
            # Nothing drains it, either: a client that sends half a body would delay the exit.
            raise PurgatoryClosedError

    def _check_access(self, raw: RawRequest, access: Access) -> None:
        if self.path_parameter == "key":
            raw.permit.check_keys(access.action, (raw.key(),))
        else:
            # Without a key: any scope of that action.
            raw.permit.check(access)


def _signature(function: Callable[..., Any], body: JsonBody[Any] | None) -> inspect.Signature:
    """Return what clients give of the signature of `function`, with the model of `body`.

    That depends on limits.
    """
    signature = inspect.signature(function, eval_str=True)
    found = []
    for each in signature.parameters.values():
        if each.name == "raw":
            continue
        # Else those without a default could not follow others.
        parameter = each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        if body is not None and each.name == "body":
            annotation: Any = Annotated[body.annotation, Body(**body.bounds)]
            parameter = parameter.replace(annotation=annotation, default=body.default)
        found.append(parameter)
    return signature.replace(parameters=found)


class Connection(Protocol):
    """Serves one request at a time, whose response may be a stream."""

    @property
    def address(self) -> str | None:
        """The address of the other end; None if unknown."""
        ...

    @property
    def context(self) -> Context | None:
        """The context (`contextvars`) of which each request gets a copy; None if it has its own."""
        ...

    def respond(self, response: RawResponse) -> None:
        """Send the response to the current request."""
        ...

    def begin_stream(self, head: RawResponse, chunked_head: RawResponse, stream: Stream) -> None:
        """Send the head of a response whose body comes in pieces, in chunks if that is possible.

        `stream` is woken when the client has read what was sent, after `is_write_paused`.
        """
        ...

    @property
    def is_write_paused(self) -> bool:
        """True while the client has not read what was sent: do not send more."""
        ...

    def send_piece(self, piece: bytes) -> None:
        """Send a part of the body, which is not empty."""
        ...

    def end_stream(self, piece: bytes) -> None:
        """Send the last part of the body, which is not empty: the response is complete.

        Where a client that has not read would keep the process from its end, disconnect instead.
        """
        ...


Sending = Callable[[Send], Awaitable[None]]
"""Sends a response in pieces."""


class PlainEndpoint(AdmittingEndpoint):
    """An ordinary function with the annotations of FastAPI.

    FastAPI reads a body before it solves parameters and dependencies, takes unknown and repeated
    parameters, and parses a body of any size. So the function is called by what was admitted and
    parsed here, with the request as `raw` if it has such a parameter. It returns a model, a
    response, or what sends one.
    """

    def __init__(
        self,
        context: EndpointContext,
        method: str,
        handler: Callable[..., Awaitable[Any]],
        access: Access | None,
        *,
        status_code: int = 200,
        **options: Any,
    ) -> None:
        """Call `handler`, and send the models that it returns with `status_code`."""
        super().__init__(context, method, handler, access, **options)
        self._handler = handler
        self._takes_raw = "raw" in inspect.signature(handler).parameters
        self._status_code = status_code

    async def serve(self, raw: AsgiRequest, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        raw.receive = receive
        refused = self.admit_unread(raw) or await self.read_body(raw, receive)
        found = await self._answer(raw) if refused is None else refused
        if isinstance(found, RawResponse):
            await send_or_give_up(send, found, self.context.unread)
        else:
            await found(send)

    def begin(self, raw: RawRequest, connection: Connection) -> None:
        """Respond on `connection`, as a rule at once: then that takes no task."""
        answering = self._answer(raw)
        try:
            pending = answering.send(None)
        except StopIteration as finished:
            connection.respond(finished.value)
        else:
            _ = finish_in_task(self._respond_later(Resumed(answering, pending), connection))

    async def _respond_later(self, answering: Awaitable[Any], connection: Connection) -> None:
        connection.respond(await answering)

    async def _answer(self, raw: RawRequest) -> RawResponse | Sending:
        try:
            # A copy: one that refers to the request would be a cycle.
            values = {**raw.values}
            if self._takes_raw:
                values["raw"] = raw
            if self.path_parameter:
                values[self.path_parameter] = raw.path_value
            body, data = self.body, raw.body
            if body is not None and (data or body.default is inspect.Parameter.empty):
                # Without a coroutine for each fire: 0.5 % of its cost.
                values["body"] = (
                    body.parse(data) if body.item is None else await body.parse_in_turns(data)
                )
            found: BaseModel | RawResponse | Sending = await self._handler(**values)
            if isinstance(found, BaseModel):
                return RawResponse.from_json(self._status_code, found.model_dump_json().encode())
        except Exception as exc:
            return self.error_response(raw, exc)
        return found


def file_response(raw: RawRequest, body: bytes, headers: Mapping[str, str]) -> RawResponse:
    """Return the response with a file; 304 if the client has the ETag in `headers`."""
    if headers["ETag"] in raw.headers_named(b"if-none-match"):
        return RawResponse.of(304, b"", headers)
    return RawResponse.of(200, body, headers)
