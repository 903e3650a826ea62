"""Fires that wait in the database for their transaction: the protocol of an outbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from purgatory.job_errors import JobError
from purgatory.jobs.model.spec import JobSpec
from purgatory.jobs.model.steps import Added, KeyFired


@dataclass(frozen=True, slots=True)
class StoredFire:
    """A fire that was committed together with the application's own changes."""

    number: int
    """Its place: fires of one transaction are in order."""
    origin: str
    """The purgatory that stored it, and fires it unless its process ends before."""
    key: str
    value_json: str
    owner: str | None
    created_ms: int
    """By the store's clock: rounds of jobs that began later are not decided by it."""
    traceparent: str | None = None
    """The trace context in which it was stored, if that is traced."""


@dataclass(frozen=True, slots=True)
class TakenFire:
    """A fire that no other process will take."""

    fire: StoredFire
    jobs: KeyFired
    """The jobs on its key that it has decided. With `has_more` the fire stays: take it again."""


@dataclass(frozen=True, slots=True)
class TakenFires:
    """The result of `Outbox.take_fires`."""

    taken: tuple[TakenFire, ...] = ()
    waiting: frozenset[str] = frozenset()
    """Keys whose fires stay, as another transaction has locked one of them, or one of their jobs:
    take them again later."""
    is_cut: bool = False
    """As many jobs were decided as one transaction may: fires are left, take them again now."""


OnCommit = Callable[[], object]


@runtime_checkable
class Outbox(Protocol):
    """A store that takes part in the transactions of the application, on the same database.

    `session` is an AsyncSession or AsyncConnection of SQLAlchemy. `on_commit` is called on the
    event loop once its transaction may be committed: look, and look again soon if nothing is there.
    """

    async def add_in(self, session: Any, specs: Sequence[JobSpec]) -> list[Added | JobError]:
        """Run `Add` for each spec in the transaction of `session`."""
        ...

    async def fire_in(
        self,
        session: Any,
        *,
        key: str,
        value_json: str,
        owner: str | None,
        origin: str,
        on_commit: OnCommit,
        traceparent: str | None = None,
    ) -> None:
        """Store a fire in the transaction of `session`."""
        ...

    async def stored_fires(
        self, origin: str, *, is_own: bool = True, after: int = 0, limit: int
    ) -> list[StoredFire]:
        """Return the first fires of `origin`, or of all others, in order."""
        ...

    async def take_fires(self, fires: Sequence[StoredFire]) -> TakenFires:
        """Decide the jobs on the keys of fires, and remove these, in one transaction.

        In order for each key, without those that another process has taken, and without waiting for
        what another transaction has locked. Of bounded size, however many jobs are on the keys.
        """
        ...
