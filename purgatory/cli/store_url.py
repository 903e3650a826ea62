"""Job stores by their URL, for commands that work on one without a server."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from purgatory.jobs.stores.protocol import JobStore
from purgatory.log_text import REDIS_SCHEMES, either, redacted

VARIABLE: Final = "PURGATORY_JOBS_URL"

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar=VARIABLE,
        show_envvar=True,
        help="The URL of the job store. Other users of the machine see command lines: set the "
        "variable if it has a password.",
    ),
]


def store_at(url: str | None) -> JobStore:
    """Return the store, which is not open yet; raise ImportError without its extra."""
    if not url:
        raise typer.BadParameter(f"give the job store: --store URL, or set {VARIABLE}")
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme in ("sqlite", "postgresql", "postgres"):
        # SqlJobStore says what is wrong with the last.
        from purgatory.jobs.sql import SqlJobStore

        return SqlJobStore(url)
    if url.partition(":")[0] in REDIS_SCHEMES:
        from purgatory.jobs.redis import RedisJobStore

        return RedisJobStore(url)
    raise typer.BadParameter(
        f"no job store supports the URL {redacted(url)!r}: give one that begins with "
        f"{either(('sqlite', 'postgresql', *REDIS_SCHEMES))}, such as sqlite:///jobs.db"
    )
