"""Errors of Redis, as errors of a store."""

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


def no_reply_error(exc: BaseException) -> StoreUnavailableError:
    """Return the error for a reply that did not come."""
    return StoreUnavailableError(
        f"Redis did not reply ({type(exc).__name__}: {exc}): the step may or may not be done, and "
        "the same call can be made again"
    )


def reply_error(message: str) -> StoreError:
    """Return the error for an error reply."""
    if re.search(r"\bOOM\b|maxmemory", message):
        return StoreFullError(
            f"Redis has no memory left ({message}): nothing was stored; raise maxmemory, or keep "
            "finished jobs for less time"
        )
    if re.search(_READ_ONLY, message):
        return StoreReadOnlyError(
            f"Redis takes no writes ({message}): connect to the primary, with a user that may "
            "write, and see why it refuses"
        )
    if re.search(_PASSING, message):
        return StoreUnavailableError(
            f"Redis is not available now ({message}): the same call can be made again"
        )
    return StoreNotReadyError(
        f"Redis does not run the steps of jobs ({message}): it has to be Redis 6.2 or Valkey, with "
        "scripts allowed, and nothing else may use the keys of this prefix"
    )
