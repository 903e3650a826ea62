"""Groups of endpoints: which ones exist, and the log line that says who may use them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from fastapi import APIRouter
from starlette.types import Receive, Scope, Send

from purgatory.fastapi.access.bearer_tokens import BearerTokens
from purgatory.fastapi.access.trusted_hosts import TrustedHosts
from purgatory.fastapi.http.authorization import ALLOW_ANYONE
from purgatory.fastapi.http.eager_send import send_response
from purgatory.fastapi.http.problems import Problem
from purgatory.purgatory import Purgatory
from purgatory.wrong_type import name_of

logger = logging.getLogger("purgatory.fastapi")

EndpointGroup = Literal["watch", "keys", "jobs", "statistics", "dashboard", "metrics"]
"""A group of endpoints that `install(endpoints=)` may offer."""
Authorize = BearerTokens | TrustedHosts | Callable[..., Any]
AUTHENTICATORS: Final = (BearerTokens, TrustedHosts)
"""They are given each request; every other `authorize` is a dependency of FastAPI."""

_GROUPS: Final[tuple[EndpointGroup, ...]] = get_args(EndpointGroup)
# Nothing in these groups changes what others get.
_OPEN_GROUPS: Final[frozenset[EndpointGroup]] = frozenset({"watch"})
_WAY_OUT: Final = (
    "set authorize= to BearerTokens, a dependency that checks your users, or ALLOW_ANYONE"
)


@dataclass(frozen=True, slots=True)
class EndpointGroups:
    """The groups of one router."""

    offered: frozenset[EndpointGroup]
    closed: frozenset[EndpointGroup]
    """Groups that would be offered with `authorize`."""
    authorize: Authorize | None
    lacks_store: bool = False
    """True iff all groups were asked for, and there is no job store for "jobs"."""

    @classmethod
    def of(
        cls,
        asked: Collection[EndpointGroup] | None,
        authorize: Authorize | None,
        purgatory: Purgatory,
        *,
        has_metrics: bool = False,
    ) -> EndpointGroups:
        """Return the groups that are `asked` for; if None, all that `authorize` allows.

        With `has_metrics`, those of metrics too. Raises ValueError for a group that is unknown,
        that needs `authorize`, a job store or metrics; TypeError for a string, and for an
        `authorize` that cannot be called.
        """
        if authorize is not None and not callable(authorize):
            raise TypeError(f"authorize is {authorize!r}, which cannot be called: {_WAY_OUT}")
        if asked is None:
            possible = frozenset(_GROUPS)
            lacks_store = not purgatory.has_jobs
            if lacks_store:
                possible -= {"jobs"}
            if not has_metrics:
                possible -= {"metrics"}
            offered = possible & _OPEN_GROUPS if authorize is None else possible
            return cls(offered, possible - offered, authorize, lacks_store)
        if isinstance(asked, str):
            raise TypeError(f"endpoints is the string {asked!r}: give a set, {{{asked!r}}}")
        offered = frozenset(asked)
        if unknown := offered - set(_GROUPS):
            raise ValueError(f"endpoints has {_listed(unknown)}; the groups are {_listed(_GROUPS)}")
        if "jobs" in offered and not purgatory.has_jobs:
            raise ValueError(
                "endpoints has 'jobs', and the purgatory no job store: Purgatory(jobs=...)"
            )
        if has_metrics:
            offered |= {"metrics"}
        elif "metrics" in offered:
            raise ValueError("endpoints names 'metrics', which are off: give metrics=True")
        if authorize is None and (closed := offered - _OPEN_GROUPS):
            raise ValueError(f"endpoints has {_listed(closed)}, not for everyone: {_WAY_OUT}")
        return cls(offered, frozenset(), authorize)

    def add_refusals(self, router: APIRouter) -> None:
        """Respond 403 at the addresses of closed groups, with the way to open them.

        And 404 at those of jobs without a job store, with the reason.
        """
        refused: set[EndpointGroup] = {*self.closed, *(("jobs",) if self.lacks_store else ())}
        for group in sorted(refused):
            refusal = _Refusal(group, router.prefix, is_closed=group in self.closed)
            more = ("/waits",) if group == "dashboard" else (f"/{group}:batch",)
            for path in (f"/{group}", f"/{group}/{{rest:path}}", *more):
                # Starlette takes an ASGI application, too, and then for every method.
                router.add_route(router.prefix + path, refusal, include_in_schema=False)  # type: ignore[arg-type] # its annotation names functions only

    def log(self, prefix: str, purgatory: Purgatory) -> None:
        """Log which groups are open, and to whom; a warning if any client may run handlers."""
        if not self.offered:
            return
        level = logging.INFO
        names = ", ".join(sorted(self.offered))
        is_by_host = isinstance(self.authorize, TrustedHosts)
        if self.closed:
            text = f"{names} open to anyone, {', '.join(sorted(self.closed))} closed: {_WAY_OUT}"
        elif isinstance(self.authorize, BearerTokens):
            count = len(self.authorize)
            text = f"{names} open to {count} token{'' if count == 1 else 's'}"
        elif not (self.authorize in (None, ALLOW_ANYONE) or is_by_host):
            text = f"{names} open to requests that {name_of(self.authorize)} allows"
        else:
            text = f"{names} open to anyone"
            if "jobs" in self.offered:
                level = logging.WARNING
                handlers = _listed(purgatory.handlers.http_names) or "none"
                text += f", who may add jobs for these handlers: {handlers}"
        logger.log(level, "%s: %s", prefix, text, extra={"action": "endpoints-open"})


class _Refusal:
    """The ASGI endpoint at the addresses of a group that is closed, or lacks its store."""

    def __init__(self, group: EndpointGroup, prefix: str, *, is_closed: bool) -> None:
        self._group = group
        self._prefix = prefix
        self._is_closed = is_closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_closed:
            problem = Problem(
                "endpoint-closed",
                f"the endpoints of {self._group} are closed, as install() was called without "
                f"authorize: {_WAY_OUT}",
            )
        else:
            problem = Problem(
                "not-found",
                f"nothing exists at {scope['path']}: this purgatory has no job store, such as "
                "Purgatory(jobs=MemoryJobStore())",
            )
        await send_response(send, problem.response(self._prefix, scope["path"]))


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(map(str, names))))
