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

from purgatory.fastapi.access.bearer_tokens import BearerTokens, new_token
from purgatory.fastapi.access.trusted_hosts import TrustedHosts
from purgatory.fastapi.access_dependency import AccessesDep
from purgatory.fastapi.delayed_response import DelayedResponse
from purgatory.fastapi.dependencies import ParkDep, PurgatoryDep, get_park, get_purgatory
from purgatory.fastapi.endpoint_groups import EndpointGroup
from purgatory.fastapi.follow import FollowDep
from purgatory.fastapi.health import create_health_router
from purgatory.fastapi.http.authorization import ALLOW_ANYONE, Access, Action
from purgatory.fastapi.http.problems import Problem
from purgatory.fastapi.install import install
from purgatory.fastapi.lifespan import create_lifespan
from purgatory.fastapi.long_poll.long_poll_key import LongPollKey
from purgatory.fastapi.long_poll.middleware import LongPollMiddleware
from purgatory.fastapi.router import create_router
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.shared_folder import warn_of_another_distribution as _warn_of_another_distribution

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
