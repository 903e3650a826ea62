"""`purgatory`, also `python -m purgatory`: the command line, as far as it is installed."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from purgatory.bench import add_command as add_bench
from purgatory.environment import discard_closed_streams
from purgatory.worker import add_command as add_worker


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name; return the exit status."""
    discard_closed_streams()
    if importlib.util.find_spec("typer") is not None and importlib.util.find_spec("httpx"):
        from purgatory.cli.application import main as run

        return run(arguments)
    parser = argparse.ArgumentParser(
        prog="purgatory",
        description="Park until a key fires or a deadline passes.",
        epilog="There are more commands with pip install 'fastapi-purgatory[cli]'.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    add_bench(commands)
    add_worker(commands)
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] not in ("bench", "worker", "-h", "--help"):
        parser.error(f"{given[0]!r} needs more: pip install 'fastapi-purgatory[cli]'")
    options = parser.parse_args(given)
    status: int = options.main(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
