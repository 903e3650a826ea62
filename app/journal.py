"""The journal, from the settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from app.settings import Settings

if TYPE_CHECKING:
    from purgatory.journal import Journal, KeyRule


class JournalUnavailableError(Exception):
    """The journal in the settings cannot be written."""


def create_journal(settings: Settings) -> Journal | None:
    """Return the journal, not yet open, or None if the settings name no directory.

    Raises JournalUnavailableError if pyarrow is missing or the directory cannot be created.
    """
    if settings.journal_dir is None:
        return None
    try:
        # Imported here: the service needs pyarrow only if it writes a journal.
        from purgatory.journal import Journal, ParquetFiles

        settings.journal_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Journal(
            ParquetFiles(settings.journal_dir, max_age=settings.journal_max_age),
            sample=settings.journal_sample,
            keys=_key_rule(settings),
        )
    except (ImportError, OSError, ValueError) as exc:
        raise JournalUnavailableError(f"PURGATORY_JOURNAL_DIR: {exc}") from exc


def journal_lifespan(
    journal: Journal | None,
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a lifespan to put around that of the purgatory; drained operations are written too."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        if journal is None:
            yield
            return
        async with journal:
            yield

    return lifespan


def _key_rule(settings: Settings) -> KeyRule | None:
    from purgatory.journal import HashedKeys, KeyPrefixes

    if settings.journal_keys == "prefix":
        return KeyPrefixes()
    if settings.journal_secret is not None:
        return HashedKeys(settings.journal_secret.get_secret_value().encode())
    return None
