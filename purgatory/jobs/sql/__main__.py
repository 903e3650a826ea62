"""`python -m purgatory.jobs.sql URL [head|base]`: make, change or drop the tables of jobs."""

from __future__ import annotations

import argparse
import asyncio

from purgatory.jobs.model.errors import StoreError
from purgatory.jobs.sql.migrations import migrate


def main() -> None:
    """Migrate; exit with 1 and a sentence if that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.jobs.sql", description="Migrate the tables of delayed jobs."
    )
    parser.add_argument("url", help="such as sqlite:///jobs.db or postgresql://user@host/name")
    parser.add_argument(
        "revision", nargs="?", default="head", help="head, or base to drop them and every job"
    )
    arguments = parser.parse_args()
    try:
        asyncio.run(migrate(arguments.url, arguments.revision))
    except (StoreError, ValueError, ImportError) as exc:
        raise SystemExit(str(exc)) from exc


if __name__ == "__main__":
    main()
