"""Who may do what to which key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purgatory.fastapi.http.raw_request import RawRequest


class Action(StrEnum):
    """What a request wants to do."""

    WAIT = "wait"
    """Watch a key, ask where it is at, end a wait by its id."""
    FIRE = "fire"
    """Fire a key."""
    DEFER = "defer"
    """Add a job; ask for one by its id, move, run or cancel it. Its keys are waited on besides."""
    OPERATE = "operate"
    """Drop a key, list keys and jobs, read statistics."""


@dataclass(frozen=True, slots=True)
class Access:
    """One thing that a request wants to do: an action, on a key where it is about one."""

    action: Action
    key: str | None = None
    job: str | None = None
    """The job, where it is about one."""


class Permit:
    """What one request may do. Subclasses say what; this one allows everything, to anyone."""

    __slots__ = ()

    @property
    def identity(self) -> str | None:
        """Who asks, never a secret; None where that is not known and the address has to do."""
        return None

    def check(self, access: Access) -> None:
        """Raise Problem unless the request may do that."""

    def check_keys(self, action: Action, keys: Iterable[str]) -> None:
        """Raise Problem unless the request may do that to each of `keys`."""
        for key in keys:
            self.check(Access(action, key))


class _Everything(Permit):
    __slots__ = ()

    def check_keys(self, action: Action, keys: Iterable[str]) -> None:
        """Allow it, without a look: this is on the way of every request."""


UNRESTRICTED = _Everything()
"""Everyone may do everything."""

Authenticate = Callable[["RawRequest"], Permit]
"""Says what a request may do; raises Problem 401 where it is not known who asks."""


def allow_anyone(raw: RawRequest) -> Permit:
    """Ask for nothing."""
    return UNRESTRICTED
