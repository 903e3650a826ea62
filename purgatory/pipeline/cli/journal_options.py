"""The options of the commands that read the journal."""

from __future__ import annotations

import argparse

from purgatory.pipeline.outcomes.bad_files import OnBadFile


def add_journal(parser: argparse.ArgumentParser, *, is_required: bool = False) -> None:
    """Add --journal, and what is to be done about its files that cannot be read."""
    parser.add_argument(
        "--journal",
        required=is_required,
        metavar="DIR",
        help="folder of the journal, or any address that Spark can read",
    )
    parser.add_argument(
        "--on-bad-file",
        type=OnBadFile,
        choices=list(OnBadFile),
        default=OnBadFile.SKIP,
        help="leave out what cannot be read and name it, or end (default %(default)s)",
    )
