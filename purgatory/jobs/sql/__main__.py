"""`python -m purgatory.jobs.sql [URL] [head|base]`: create, change or drop the tables of jobs."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from purgatory.job_errors import StoreError
from purgatory.jobs.sql.migrations import migrate

VARIABLE = "PURGATORY_JOBS_URL"
REVISIONS = ("head", "base")


def main() -> None:
    """Migrate; exit with 1 and a sentence if that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.jobs.sql", description="Migrate the tables of delayed jobs."
    )
    parser.add_argument(
        "url",
        nargs="?",
        help="such as sqlite:///jobs.db or postgresql://user@host/name; default: the environment "
        f"variable {VARIABLE}, which other users of the machine cannot see",
    )
    parser.add_argument(
        "revision", nargs="?", help="head, or base to drop them and every job; default: head"
    )
    arguments = parser.parse_args()
    url, revision = arguments.url, arguments.revision
    if url in REVISIONS and revision is None:
        url, revision = None, url
    if url is None:
        url = os.environ.get(VARIABLE)
        if not url:
            parser.error(f"give a URL, or set {VARIABLE}")
    elif _has_password(url):
        sys.stderr.write(
            f"The URL contains a password, which the list of processes shows: set {VARIABLE} "
            "and omit the URL.\n"
        )
    try:
        asyncio.run(migrate(url, revision or "head"))
    except (StoreError, ValueError, ImportError) as exc:
        raise SystemExit(str(exc)) from exc


def _has_password(url: str) -> bool:
    user, at, _ = url.partition("://")[2].rpartition("@")
    return bool(at and user.partition(":")[2]) or "password=" in url


if __name__ == "__main__":
    main()
