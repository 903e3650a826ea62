"""The web edge: two lines in an existing FastAPI application.

    purgatory = Purgatory()
    install(app, purgatory)

Each part is usable alone: `create_router`, `create_lifespan`, `LongPollMiddleware`.
"""

try:
    import fastapi as _fastapi  # noqa: F401 - imported to say, once, what is missing
except ImportError as exc:
    raise ImportError(
        "purgatory.fastapi needs FastAPI: pip install 'fastapi-purgatory[fastapi]'"
    ) from exc

from purgatory.environment import warn_of_another_distribution as _warn_of_another_distribution
from purgatory.fastapi.access import BearerTokens, TrustedHosts, new_token
from purgatory.fastapi.http.requests import ALLOW_ANYONE, Access, Action
from purgatory.fastapi.http.responses import Problem
from purgatory.fastapi.install import install
from purgatory.fastapi.long_poll import LongPollKey, LongPollMiddleware
from purgatory.fastapi.parking import (
    AccessesDep,
    DelayedResponse,
    FollowDep,
    ParkDep,
    PurgatoryDep,
    get_park,
    get_purgatory,
)
from purgatory.fastapi.router import (
    EndpointGroup,
    create_health_router,
    create_lifespan,
    create_router,
)
from purgatory.fastapi.watch.settings import WaitSettings

__all__ = [
    "ALLOW_ANYONE",
    "Access",
    "AccessesDep",
    "Action",
    "BearerTokens",
    "DelayedResponse",
    "EndpointGroup",
    "FollowDep",
    "LongPollKey",
    "LongPollMiddleware",
    "ParkDep",
    "Problem",
    "PurgatoryDep",
    "TrustedHosts",
    "WaitSettings",
    "create_health_router",
    "create_lifespan",
    "create_router",
    "get_park",
    "get_purgatory",
    "install",
    "new_token",
]

# Here too: the other's __init__ may have replaced that of `purgatory`.
_warn_of_another_distribution()
