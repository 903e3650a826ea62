"""LongPollMiddleware: any GET with an ETag as a long poll."""

from __future__ import annotations

import logging
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from purgatory.fastapi.http.parameters import EntityTags, parse_preferences
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.long_poll.endpoint_call import WATCHED_KEYS, without_key_header
from purgatory.fastapi.long_poll.long_poll_request import LongPoll, LongPollRequest, UnparkedRoutes
from purgatory.fastapi.routing.raw_endpoint import DEFAULT_PREFIX
from purgatory.fastapi.watch.settings import ClientOf, PerClientLimit, WaitSettings, installed_limit
from purgatory.purgatory import Purgatory

logger = logging.getLogger("purgatory.fastapi")

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
        self._app = app
        self._purgatory = purgatory
        self._has_own_limit = settings is not None or client is not None
        settings = settings or WaitSettings()
        self._max_wait = settings.max_wait
        self._clients = PerClientLimit(settings.max_parked_per_client, purgatory, client)
        self._prefix = prefix
        self._unparked = UnparkedRoutes()
        self._methods: tuple[str, ...] = ("GET", "HEAD")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        if scope["type"] != "http" or scope["method"] not in self._methods:
            if scope["type"] == "lifespan":
                self._check_start(scope)
            await self._app(scope, receive, send)
            return
        request = self._request(scope)
        if request is None:
            scope[WATCHED_KEYS] = None
            await self._app(scope, receive, without_key_header(send))
            return
        installed = None if self._has_own_limit else installed_limit(scope)
        long_poll = LongPoll(
            self._app,
            self._purgatory,
            request,
            scope,
            receive,
            send,
            prefix=self._prefix,
            clients=installed or self._clients,
            unparked=self._unparked,
        )
        await long_poll.run()

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
        self._compare(scope.get("app"))

    def _compare(self, app: Any) -> None:
        installed = getattr(getattr(app, "state", None), "purgatory", self._purgatory)
        if installed is not self._purgatory:
            logger.warning(
                "LongPollMiddleware waits on %r, and %r is installed in the application: a fire on "
                "one does not wake who waits on the other; give both the same",
                self._purgatory,
                installed,
                extra={"action": "two-purgatories"},
            )

    def _request(self, scope: Scope) -> LongPollRequest | None:
        # ASGI has them always, but tests of other middleware leave them out.
        headers = scope.get("headers", ())
        prefer = [value.decode("latin-1") for name, value in headers if name == b"prefer"]
        if not prefer:
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
        return LongPollRequest(tags, min(wait, self._max_wait))
