"""Actions, the access that a request needs, and the permit that it carries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from purgatory.fastapi.http.raw_request import RawRequest


class Action(StrEnum):
    """What a request does."""

    WAIT = "wait"
    """Watch a key, get its cursor, end a wait by its id."""
    FIRE = "fire"
    """Fire a key."""
    DEFER = "defer"
    """Add a job; get one by its id, reschedule, run or cancel it. Its keys need WAIT besides."""
    OPERATE = "operate"
    """Drop a key, retry, pause and resume jobs, act from the dashboard; and read-only: list keys,
    waits, jobs, statistics."""
    METRICS = "metrics"
    """Read the metrics, which OPERATE allows too."""


@dataclass(frozen=True, slots=True)
class Access:
    """One action of a request, on a key or a job if it is about one."""

    action: Action
    key: str | None = None
    job: str | None = None
    """The id of the job, if it is about one."""
    dedupe_key: str | None = None
    """The dedupe key of the job to be added, if it has one."""
    is_read_only: bool = False
    """True iff it is an OPERATE that changes nothing, as the dashboard's view is."""


READ: Final = Access(Action.OPERATE, is_read_only=True)
"""What operators read: statistics, lists, the dashboard."""


class Permit:
    """What one request may do. Subclasses restrict it; this class allows everything."""

    __slots__ = ()

    @property
    def identity(self) -> str | None:
        """The client, never a secret; None if unknown: then its address identifies it."""
        return None

    def dedupe_owner(self, dedupe_key: str) -> str | None:
        """Return whose dedupe key it is; None if it is shared with `Purgatory.defer`.

        Clients without an identity are one owner, named by the empty string: what a handler that is
        closed to HTTP adds in Python must not be found or replaced by them.
        """
        return self.identity or ""

    def check(self, access: Access) -> None:
        """Raise Problem unless the request may do that."""

    def allows(self, access: Access) -> bool:
        """Return True iff the request may do that."""
        return True

    def check_keys(self, action: Action, keys: Iterable[str]) -> None:
        """Raise Problem unless the request may do that to each of `keys`."""
        for key in keys:
            self.check(Access(action, key))


class _Everything(Permit):
    __slots__ = ()

    def check_keys(self, action: Action, keys: Iterable[str]) -> None:
        """Allow all, without a loop: this is called for every request."""


UNRESTRICTED = _Everything()
"""The permit of everyone if there is no access control."""

Authenticate = Callable[["RawRequest"], Permit]
"""Returns the permit of a request; raises Problem 401 for an unknown client."""


def ALLOW_ANYONE(raw: RawRequest) -> Permit:  # noqa: N802 - used as a constant
    """Pass it as `authorize=`: every client that reaches the endpoints may do everything."""
    return UNRESTRICTED
