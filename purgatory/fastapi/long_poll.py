"""Any GET with an ETag as a long poll: the middleware, its requests, and calls of the endpoint.

Here: parking, repeated calls of the endpoint, and how an endpoint names its keys. Not here: the
endpoint `/watch`, which has signals for a result, and `ParkDep`, which parks within one call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from string import Formatter
from typing import ClassVar, Final

from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purgatory.errors import PurgatoryClosedError, PurgatoryError
from purgatory.fastapi.http.asgi import (
    CLIENT_CLOSED_REQUEST,
    InterruptibleReceive,
    is_disconnect,
    may_have_body,
    send_from_outside,
    send_response,
)
from purgatory.fastapi.http.errors import problem_of_error
from purgatory.fastapi.http.parameters import EntityTags, jittered, opaque_tag, parse_preferences
from purgatory.fastapi.http.responses import (
    Headers,
    Problem,
    RawResponse,
    encoded,
    retry_after,
)
from purgatory.fastapi.routing.endpoints import DEFAULT_PREFIX
from purgatory.fastapi.routing.routes import RawRoute, effective_route
from purgatory.fastapi.watch.settings import (
    ClientOf,
    PerClientLimit,
    WaitSettings,
    installed_limit,
)
from purgatory.operations import DelayedOperation
from purgatory.outcome import Status
from purgatory.purgatory import Purgatory
from purgatory.signals import WaitOperation
from purgatory.timer.clock import NS_PER_MS

logger = logging.getLogger("purgatory.fastapi")

KEY_HEADER: Final = b"long-poll-key"


def take_keys(headers: Iterable[tuple[bytes, bytes]]) -> tuple[Headers, list[str]]:
    """Return the headers without ours, and the keys in ours."""
    kept: Headers = []
    keys: list[str] = []
    for name, value in headers:
        if name == KEY_HEADER:
            keys += filter(None, (key.strip() for key in value.decode("latin-1").split(",")))
        else:
            kept.append((name, value))
    return kept, keys


def without_key_header(send: Send) -> Send:
    """Return a `send` that removes our header."""

    # Not a coroutine function: that would be one coroutine more for every message.
    def send_on(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            kept = [pair for pair in headers if pair[0] != KEY_HEADER]
            message = {**message, "headers": kept}
        return send(message)

    return send_on


# Where in the scope the middleware looks for keys: None if the request does not wait, and absent
# without the middleware.
WATCHED_KEYS: Final = "purgatory.watched_keys"


@dataclass(frozen=True, slots=True)
class LongPollKey:
    """A dependency that declares: this response changes when that key fires.

        @app.get("/orders/{order_id}", dependencies=[Depends(LongPollKey("order:{order_id}"))])

    For `LongPollMiddleware`; without it a warning is logged, once. Its value is the key. Parameters
    are used as the path has them: if the endpoint takes 007 for 7, refuse the one or name the key
    in the response's header, or that client waits for `order:007`, which never fires.

    Two of the same template are equal, so that `app.dependency_overrides` finds them. Raises
    ValueError for a template with anything but plain names of path parameters in braces.
    """

    template: str
    # Whether the missing middleware has been logged.
    _said: list[bool] = field(default_factory=list, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError unless the template is text and `{names}`."""
        try:
            fields = list(Formatter().parse(self.template))
        except ValueError as exc:
            raise ValueError(
                f"template {self.template!r} has an unpaired brace ({exc}): a field is the plain "
                "name of a path parameter, such as {order_id}, and a brace in the key is doubled"
            ) from None
        for _, name, specification, conversion in fields:
            if name is not None and (not name.isidentifier() or specification or conversion):
                raise ValueError(
                    f"template {self.template!r} has a field {name!r}: a field is the plain name "
                    "of a path parameter, such as {order_id}"
                )

    @property
    def names(self) -> set[str]:
        """The path parameters that the template has."""
        return {name for _, name, _, _ in Formatter().parse(self.template) if name is not None}

    # Nothing is awaited, but FastAPI would run a plain function in a thread.
    async def __call__(self, request: HTTPConnection) -> str:
        """Add the key for the middleware, and return it."""
        try:
            key = self.template.format_map(request.path_params)
        except KeyError as exc:
            raise RuntimeError(
                f"LongPollKey({self.template!r}) is used in an endpoint whose path has no "
                f"parameter {exc}; it has "
                f"{', '.join(map(repr, request.path_params)) or 'none'}"
            ) from None
        keys: list[str] | None = request.scope.get(WATCHED_KEYS)
        if keys is not None:
            keys.append(key)
        elif not self._said and WATCHED_KEYS not in request.scope:
            self._warn(request)
        return key

    def _warn(self, request: HTTPConnection) -> None:
        if request.scope.get("method") not in ("GET", "HEAD"):
            # The middleware leaves such a request alone, and a WebSocket.
            return
        self._said.append(True)
        logger.warning(
            "LongPollKey(%r) at %s has no effect without the middleware, and clients that wait get "
            "a response at once: app.add_middleware(LongPollMiddleware, purgatory=purgatory)",
            self.template,
            getattr(effective_route(request.scope), "path", request.url.path),
            extra={"action": "middleware-missing"},
        )


def drop_exit_stacks(scope: Scope) -> None:
    """Remove what FastAPI has stored for one call: a quarter of what a parked request keeps."""
    for name in [name for name, value in scope.items() if type(value) is AsyncExitStack]:
        del scope[name]


# Messages of a withheld response between two turns of the event loop.
_TURN: Final = 64


class EndpointCall:
    """Stands between an endpoint and the client, and withholds a response that the client has.

    That is decided at the first message of the response. An endpoint whose response is withheld
    sees a client that has left: what it sends is dropped, and `receive()` returns a disconnect.
    That ends a stream as it would end without the middleware; background tasks run.
    """

    def __init__(self, poll: LongPoll, scope: Scope) -> None:
        """Prepare a call with a copy of `scope`: no call sees what another one stored there.

        The request has no body. `poll` decides what is withheld.
        """
        self.keys: list[str] = []
        """The keys that the endpoint has named; complete once there are headers."""
        self.scope: Scope = {**scope, WATCHED_KEYS: self.keys}
        if "state" in scope:
            self.scope["state"] = scope["state"].copy()
        if "asgi" in scope:
            # In that version, sending to a client that has left does nothing, as here; with a
            # later one, Starlette's streams would not wait for http.disconnect.
            self.scope["asgi"] = {**scope["asgi"], "spec_version": "2.3"}
        self.status = 0
        self.headers: Headers = []
        self.is_kept_back = False
        self._poll = poll
        self._has_read = False
        self._swallowed = 0

    @property
    def etag(self) -> bytes:
        """The ETag of the response; empty if it has none."""
        return next((value for name, value in self.headers if name == b"etag"), b"")

    async def receive(self) -> Message:
        """Return the client's next message: the endpoint's `receive`."""
        if not (self._has_read or self.is_kept_back):
            self._has_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        message = None if self.is_kept_back else await self._poll.receive()
        return message or {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send `message`, unless the response is withheld: the endpoint's `send`."""
        if self.is_kept_back:
            self._swallowed += 1
            if self._swallowed % _TURN == 0:
                # A stream that never waits would not be cancelled. Most do wait, and clean up there
                # when they are.
                await asyncio.sleep(0)
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers, keys = take_keys(message.get("headers", ()))
            self.keys += keys
            if self._poll.should_keep_back(self):
                self.is_kept_back = True
                self._poll.receive.interrupt()
                await self._poll.keep_back(self)
                return
            message = {**message, "headers": self.headers}
        try:
            await self._poll.send(message)
        except OSError:
            # A server of ASGI 2.4 raises this when the client has left; see above.
            pass

    def give_scope_back(self, scope: Scope) -> None:
        """Copy what the endpoint stored in its scope to `scope`, for middleware outside of ours."""
        own = {name: scope[name] for name in ("asgi", "state") if name in scope}
        scope.update(self.scope)
        scope.update(own)
        scope.pop(WATCHED_KEYS, None)
        if "state" in own:
            own["state"].clear()
            own["state"].update(self.scope["state"])


# Headers of the body, which is not sent. All others stay: those for caches (Cache-Control,
# Content-Location, ETag, Expires, Vary), as the RFC asks, and those for browsers (CORS, cookies,
# policies), without which a page could not even read the 304.
_OF_A_BODY: Final = frozenset(
    # Last-Modified is weaker than the ETag.
    b"accept-ranges content-digest content-disposition content-encoding content-language "
    b"content-length content-md5 content-range content-type digest last-modified repr-digest "
    b"trailer transfer-encoding".split()
)


NO_KEY: Final = (
    "it names no key: give it Depends(LongPollKey(...)), or its response the header Long-Poll-Key"
)
NO_ETAG: Final = 'its response has no ETag such as "1" or W/"1", in quotes'
CLOSED: Final = "the client gets 503"
BAD_KEY: Final = "it names a key that cannot be watched"


class LongPollOperation(WaitOperation):
    """Fires once anything happened to its keys since a position, though not before `begin`.

    A key whose history was trimmed counts, although it cannot be read: the response may have
    changed all the same.
    """

    kind: ClassVar[str] = "long-poll"

    __slots__ = ("_is_begun", "_poll")

    def __init__(
        self, delay_ms: int, poll: LongPoll, keys: tuple[str, ...], positions: int | tuple[int, ...]
    ) -> None:
        """Call `poll.on_end` once, unless the wait is abandoned; `keys` are unique."""
        super().__init__(delay_ms, poll.purgatory.signals, keys, positions)
        self._poll = poll
        self._is_begun = False

    def begin(self) -> None:
        """Fire from now on, and at once for what has happened already.

        Until then only the deadline counts: the endpoint cannot be called again before the first
        call has returned.
        """
        self._is_begun = True
        self.try_complete()

    def try_complete(self) -> bool:
        """Complete if anything happened to a key."""
        if not self._is_begun:
            return False
        if super().try_complete():
            return True
        is_forgotten = self.signals.loss(self.watched_keys, self.positions) is not None
        return is_forgotten and self.force_complete()

    def _settle(self, status: Status) -> bool:
        # Never outdated: the endpoint, which is called again, reads the state rather than signals.
        return DelayedOperation._settle(self, status)

    def on_complete(self) -> None:
        """Report the status."""
        if not self.is_abandoned:
            self._poll.on_end(self.status)


NS_PER_SECOND: Final = 1_000_000_000


class LongPoll:
    """Calls the endpoint, and parks for as long as its response is one that the client has.

    All calls are made in the request's own task. While the request is parked, that waits in
    `receive()` for the client to leave: a key that fires interrupts it, and the endpoint is called
    again; any other end of the wait sends the 304 from outside, which makes `receive()` return.

    Nothing is lost between a response and the parking: a signal after the position that was noted
    before the call ends the wait at once.
    """

    def __init__(
        self,
        middleware: LongPollMiddleware,
        tags: EntityTags,
        wait: float,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Respond with a response that has none of `tags`, within `wait` seconds."""
        self._app = middleware.app
        self.purgatory = purgatory = middleware.purgatory
        self._clients = middleware.clients_of(scope)
        self._middleware = middleware
        self._tags = tags
        self._wait = wait
        self._scope = scope
        # As it is before the first call stores something in it.
        self._pristine = {**scope}
        if "state" in scope:
            self._pristine["state"] = scope["state"].copy()
        self.receive = InterruptibleReceive(receive)
        self.send = send
        self._counted = ""
        timeout_ns = round(jittered(wait) * NS_PER_SECOND)
        self._deadline_ns = purgatory.clock.now_ns() + timeout_ns
        self._came_while_draining = purgatory.is_draining
        self._has_failed = False
        self._headers: Headers = []
        self._call: EndpointCall | None = None
        self._was_parked = False
        self._operation: LongPollOperation | None = None
        # The task that sends the response, where there has to be one.
        self._sending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Respond, and return once the last call of the endpoint has returned."""
        try:
            # The message of a request without a body.
            await self.receive()
            while await self._ask() and await self._park():
                pass
        finally:
            if self._operation is not None:
                self._operation.abandon()
                # Its callback refers to this: a cycle, which would keep the request.
                self._operation = None
            self._clients.leave(self._counted)

    async def _ask(self) -> bool:
        """Call the endpoint; return True iff the request is to be parked."""
        self._operation = None
        # Before the endpoint reads anything: it may not see what fires from now on.
        self._mark = self.purgatory.signals.mark()
        self._call = call = EndpointCall(self, self._pristine)
        try:
            await self._app(call.scope, call.receive, call.send)
        except ClientDisconnect:
            # The client has left, or EndpointCall pretended so.
            if not call.is_kept_back:
                raise
        except Exception:
            await self._respond_before_failing()
            raise
        finally:
            call.give_scope_back(self._scope)
            # A parked request should hold no more than it needs.
            self._call = None
        is_parked = self._operation is not None
        if is_parked:
            drop_exit_stacks(self._scope)
        return is_parked

    async def _park(self) -> bool:
        """Wait; return True iff a key fired, False if the client has its response or has left."""
        operation = self._operation
        assert operation is not None
        operation.begin()
        while operation.status is not Status.FIRED and not self._has_failed:
            message = await self.receive()
            if message is not None and is_disconnect(message):
                await self._leave(operation)
                return False
        return operation.status is Status.FIRED

    async def _leave(self, operation: LongPollOperation) -> None:
        has_answer = operation.is_completed and operation.status is not Status.FIRED
        operation.abandon()
        if not has_answer:
            # Nobody reads it, but middleware takes a missing response for a failure.
            await self._respond(RawResponse.empty(CLIENT_CLOSED_REQUEST))
        elif self._sending is not None:
            await self._sending

    def should_keep_back(self, call: EndpointCall) -> bool:
        """Return True iff the client has this response, and can wait for another one."""
        if self._is_comparable(call) and (call.status == 304 or self._tags.match(call.etag)):
            return True
        if self._was_parked:
            call.headers.append((b"preference-applied", self._applied.encode()))
        call.give_scope_back(self._scope)
        return False

    def _is_comparable(self, call: EndpointCall) -> bool:
        # Preconditions are for responses that would be successful (RFC 9110, section 13.2.1).
        if call.status != 304 and not 200 <= call.status < 300:
            return False
        if not call.keys:
            self._middleware.say_unparked(call.scope, NO_KEY)
        elif call.status != 304 and opaque_tag(call.etag) is None:
            self._middleware.say_unparked(call.scope, NO_ETAG)
        else:
            try:
                self.purgatory.positions(call.keys)
            except ValueError as exc:
                self._middleware.say_unparked(call.scope, BAD_KEY, exc)
            else:
                return True
        return False

    async def keep_back(self, call: EndpointCall) -> None:
        """Begin to wait, or respond at once if the wait is over or refused.

        While the endpoint still runs, for the rest of a stream or background tasks, only the
        deadline counts.
        """
        purgatory = self.purgatory
        self._headers = call.headers
        remaining_ms = -(-(self._deadline_ns - purgatory.clock.now_ns()) // NS_PER_MS)
        if remaining_ms <= 0:
            await self._respond(self._not_modified(Status.EXPIRED))
        elif purgatory.is_draining and not self._came_while_draining:
            await self._respond(self._not_modified(Status.DRAINED))
        else:
            keys = tuple(dict.fromkeys(call.keys))
            since = purgatory.signals.since_mark(self._mark, keys)
            operation = LongPollOperation(remaining_ms, self, keys, since)
            try:
                if not self._counted:
                    self._counted = self._clients.enter(self._clients.key_of(call.scope))
                purgatory.park_operation(operation, operation.watched_keys)
            except PurgatoryError as exc:
                if type(exc) is PurgatoryClosedError:
                    # The client is not told how the application is made.
                    self._middleware.say_unparked(call.scope, CLOSED, exc)
                problem = problem_of_error(exc)
                await self._respond(problem.response(self._middleware.prefix, self._scope["path"]))
            else:
                self._operation = operation
                self._was_parked = True

    def on_end(self, status: Status) -> None:
        """Call the endpoint again if a key fired, or respond: the wait is over."""
        if status is Status.FIRED:
            self.receive.interrupt()
        else:
            responding = self._respond(self._not_modified(status))
            self._sending = send_from_outside(self.send, responding, self._give_up)

    def _give_up(self) -> None:
        # The server failed to send the response: the request's task has nothing left to wait for.
        self._has_failed = True
        self.receive.interrupt()

    async def _respond_before_failing(self) -> None:
        # An endpoint that fails in a background task has responded all the same.
        operation = self._operation
        if operation is not None and not operation.is_completed:
            operation.abandon()
            await self._respond(self._not_modified(Status.EXPIRED))

    async def _respond(self, response: RawResponse) -> None:
        if self._call is not None:
            self._call.give_scope_back(self._scope)
        try:
            await send_response(self.send, response)
        except OSError:
            # A server of ASGI 2.4 raises this when the client has left.
            pass

    def _not_modified(self, status: Status) -> RawResponse:
        more = {"Preference-Applied": self._applied}
        if status is Status.DRAINED:
            more |= {**retry_after(), "Connection": "close"}
        kept = [(name, value) for name, value in self._headers if name.lower() not in _OF_A_BODY]
        return RawResponse(304, [*kept, *encoded(more)], b"")

    @property
    def _applied(self) -> str:
        return f"wait={self._wait:g}"


# In the scope of a lifespan that has passed through one of these.
_PASSED: Final = "purgatory.long_poll"


class LongPollMiddleware:
    """Parks a GET with `Prefer: wait=25` and `If-None-Match` until its ETag is another one.

        app.add_middleware(LongPollMiddleware, purgatory=purgatory)

    For an endpoint that returns an ETag and names the keys that it depends on: with the dependency
    `LongPollKey("order:{order_id}")`, or with headers `Long-Poll-Key: order:42`, which are not sent
    on. A response with a different ETag is sent at once. The same one, compared weakly, parks the
    request; when a key fires the endpoint is called again. At the end of the wait the response is
    304, with Preference-Applied.

    HEAD is treated as GET; other requests and other connections pass through. Of two in one
    application, the inner one does nothing, and a warning says so at start.
    Middleware outside of this one sees one request, middleware inside sees each call.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        purgatory: Purgatory,
        settings: WaitSettings | None = None,
        prefix: str = DEFAULT_PREFIX,
        client: ClientOf | None = None,
    ) -> None:
        """Park in `purgatory`; `prefix` is that of `install`, for the types of problems.

        Without `settings`, `max_parked_per_client` is that of `install`, and counts what is parked
        elsewhere, too. Otherwise these requests are counted alone: for the clients that `client`
        names, as in `install`, or by address.
        """
        self.app = app
        self.purgatory = purgatory
        self._has_own_limit = settings is not None or client is not None
        settings = settings or WaitSettings()
        self._max_wait = settings.max_wait
        self._clients = PerClientLimit(settings.max_parked_per_client, purgatory, client)
        self.prefix = prefix
        # Routes of the application, and reasons: no part of it comes from clients.
        self._said: set[tuple[str, str]] = set()
        self._methods: tuple[str, ...] = ("GET", "HEAD")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        if scope["type"] != "http" or scope["method"] not in self._methods:
            if scope["type"] == "lifespan":
                self._check_start(scope)
            await self.app(scope, receive, send)
            return
        request = self._request(scope)
        if request is None:
            scope[WATCHED_KEYS] = None
            await self.app(scope, receive, without_key_header(send))
            return
        await LongPoll(self, *request, scope, receive, send).run()

    def say_unparked(self, scope: Scope, reason: str, detail: object = "") -> None:
        """Log why requests with `Prefer: wait` do not wait: once per route and reason."""
        route = scope.get("route")
        if isinstance(route, RawRoute):
            # One of ours parks by itself, or has nothing to wait for.
            return
        route = effective_route(scope)
        name = getattr(route, "path", None) or repr(scope.get("endpoint"))
        if (name, reason) in self._said:
            return
        self._said.add((name, reason))
        logger.warning(
            "a client wants to wait at %s, which responds at once: %s%s",
            name,
            reason,
            f" ({detail})" if detail else "",
            extra={"action": "long-poll-not-parked"},
        )

    def clients_of(self, scope: Scope) -> PerClientLimit:
        """Return what counts the client of a request."""
        return (None if self._has_own_limit else installed_limit(scope)) or self._clients

    def _check_start(self, scope: Scope) -> None:
        """Log if this is the second middleware, or another purgatory is installed."""
        if _PASSED in scope:
            # The inner one would take the keys that the outer one waits for.
            self._methods = ()
            logger.warning(
                "LongPollMiddleware was added twice to an application; the inner one does nothing: "
                "call app.add_middleware(LongPollMiddleware, ...) once",
                extra={"action": "middleware-twice"},
            )
            return
        scope[_PASSED] = True
        state = getattr(scope.get("app"), "state", None)
        installed = getattr(state, "purgatory", self.purgatory)
        if installed is not self.purgatory:
            logger.warning(
                "LongPollMiddleware waits on %r, and another object, %r, is installed in the "
                "application: a fire on one does not wake who waits on the other; give both the "
                "same object",
                self.purgatory,
                installed,
                extra={"action": "two-purgatories"},
            )

    def _request(self, scope: Scope) -> tuple[EntityTags, float] | None:
        # ASGI has them always, but tests of other middleware leave them out.
        headers = scope.get("headers", ())
        prefer = [value.decode("latin-1") for name, value in headers if name == b"prefer"]
        # A body could not be read again by the next call; hardly any GET has one.
        if not prefer or may_have_body(scope):
            return None
        try:
            wait = parse_preferences(prefer).wait
        except Problem:
            # A preference that cannot be parsed is ignored (RFC 7240, section 2).
            return None
        fields = [value for name, value in headers if name == b"if-none-match"]
        # It would respond at once for ever to a client that forgets the quotes.
        tags = EntityTags.parse_leniently(fields)
        if wait is None or tags is None:
            return None
        return tags, min(wait, self._max_wait)
