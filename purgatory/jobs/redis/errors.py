"""Errors of Redis, as errors of a store."""

from __future__ import annotations

import re
from collections.abc import Iterator

from redis.exceptions import AuthenticationError, AuthorizationError, NoScriptError, ResponseError

from purgatory.job_errors import (
    StoreError,
    StoreNotReadyError,
    StoreOutOfSpaceError,
    StoreReadOnlyError,
    StoreUnavailableError,
)

# Why a server takes no writes, and the way out.
_READ_ONLY = {
    r"\bMISCONF\b": "it cannot write to its disk; see its log, and whether the disk is full",
    r"\b(NOREPLICAS|NOWRITE)\b": "too few replicas are connected to it; see its "
    "min-replicas-to-write, and its replicas",
    r"\bNOPERM\b|no permissions": "connect with a user that may write",
    r"\bREADONLY\b": "it is a replica; connect to the primary",
}
_PASSING = r"\b(LOADING|BUSY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|UNKILLABLE)\b"


def no_reply_error(exc: BaseException, *, is_read: bool = False) -> StoreError:
    """Return the error for a reply that did not come, to a request that only reads or another."""
    # A client reports what the server replied to its login as a lost connection.
    for reason in _reasons(exc):
        if isinstance(reason, AuthenticationError | AuthorizationError):
            return StoreNotReadyError(
                f"Redis refuses the login ({reason}): check the user and the password in its URL"
            )
        if isinstance(reason, ResponseError) and not isinstance(reason, NoScriptError):
            return reply_error(str(reason))
    # Nothing is uncertain after a read, such as the one with which a store is opened.
    way_out = (
        "check the server and its address"
        if is_read
        else "the step may or may not be done, and the same call can be made again"
    )
    return StoreUnavailableError(f"Redis did not reply ({type(exc).__name__}: {exc}): {way_out}")


def _reasons(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


def reply_error(message: str) -> StoreError:
    """Return the error for an error reply."""
    if re.search(r"\bOOM\b|maxmemory", message):
        return StoreOutOfSpaceError(
            f"Redis has no memory left ({message}): nothing was stored; raise maxmemory, or keep "
            "finished jobs for less time"
        )
    for pattern, way_out in _READ_ONLY.items():
        if re.search(pattern, message):
            return StoreReadOnlyError(f"Redis takes no writes ({message}): {way_out}")
    if "DB index" in message:
        return StoreNotReadyError(
            f"Redis has no such database ({message}): check the number at the end of its URL"
        )
    if re.search(_PASSING, message):
        return StoreUnavailableError(
            f"Redis is not available now ({message}): the same call can be made again"
        )
    return StoreNotReadyError(
        f"Redis does not run the steps of jobs ({message}): it has to be Redis 6.2 or Valkey, with "
        "scripts allowed, and nothing else may use the keys of this prefix"
    )
