"""`python -m purgatory`: what the library does from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from purgatory.bench.command import add_command as add_bench


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m purgatory", description="Park until a key fires or a deadline passes."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    add_bench(commands)
    options = parser.parse_args(arguments)
    status: int = options.main(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
