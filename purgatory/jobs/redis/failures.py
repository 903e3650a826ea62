"""What Redis says when it cannot, in our words."""

from __future__ import annotations

import re

from purgatory.jobs.model.errors import (
    StoreError,
    StoreFullError,
    StoreNotReadyError,
    StoreReadOnlyError,
    StoreUnavailableError,
)

_READ_ONLY = r"\b(READONLY|MISCONF|NOREPLICAS|NOPERM|NOWRITE)\b|no permissions"
_PASSING = r"\b(LOADING|BUSY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|UNKILLABLE)\b"


def unavailable(exc: BaseException) -> StoreUnavailableError:
    """Return what to raise when no answer came."""
    return StoreUnavailableError(
        f"Redis did not answer ({type(exc).__name__}: {exc}): what was asked may or may not be "
        "done, and the same call can be made again"
    )


def refusal(complaint: str) -> StoreError:
    """Return what to raise for an error that the server answered with."""
    if re.search(r"\bOOM\b|maxmemory", complaint):
        return StoreFullError(
            f"Redis has no memory left ({complaint}): nothing was stored; raise maxmemory, or let "
            "finished jobs be forgotten sooner"
        )
    if re.search(_READ_ONLY, complaint):
        return StoreReadOnlyError(
            f"Redis takes no writes ({complaint}): connect to the primary, with a user that may "
            "write, and see why it refuses"
        )
    if re.search(_PASSING, complaint):
        return StoreUnavailableError(
            f"Redis cannot answer now ({complaint}): the same call can be made again"
        )
    return StoreNotReadyError(
        f"Redis does not do what is asked ({complaint}): it has to be Redis 6.2 or Valkey, with "
        "scripts allowed, and nothing else may use the keys of this prefix"
    )
