"""`python -m purgatory.pipeline NAME --journal DIR --out DIR`, or by spark-submit."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Sequence

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from purgatory.errors import PurgatoryError
from purgatory.pipeline.bad_files import OnBadFile
from purgatory.pipeline.command import Call, Command
from purgatory.pipeline.commands import COMMANDS
from purgatory.pipeline.folder import Folder
from purgatory.pipeline.outcome_table import DEFAULT_GRACE_S
from purgatory.pipeline.progress import Progress
from purgatory.pipeline.python_cause import python_cause
from purgatory.pipeline.session import DEFAULT_MASTER, DEFAULT_MEMORY, spark_session

logger = logging.getLogger("purgatory.pipeline")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name; return the exit status.

    0 is success; 1 is what the user can mend, said in a sentence; 2 is a wrong argument.
    """
    options = _parser().parse_args(arguments)
    command: Command = options.command
    say = Progress()
    try:
        spark = spark_session(
            f"purgatory {command.name}", master=options.master, memory=options.memory
        )
        _check_folders(spark, options)
        said = command.run(Call(options=options, spark=spark, say=say))
    except (PurgatoryError, ValueError) as error:
        return _failed(command, str(error))
    except (Py4JJavaError, PySparkException) as error:
        # For who has to look deeper; the sentence that follows is the answer.
        logger.debug("%s failed", command.name, exc_info=True, extra={"action": command.name})
        return _failed(command, _sentence(error))
    say("done")
    if said:
        sys.stdout.write(f"{said}\n")
    return 0


def _check_folders(spark: SparkSession, options: argparse.Namespace) -> None:
    # Else a table would be made from all of the journal before it is found out.
    for name in ("journal", "out"):
        path = getattr(options, name)
        if path and Folder(spark, path).is_file():
            raise ValueError(f"--{name} {path} is a file: give the folder")


def _failed(command: Command, sentence: str) -> int:
    sys.stderr.write(f"{command.name}: {sentence}\n")
    return 1


def _sentence(error: Exception) -> str:
    """Return what a Python worker died of, else the first line of what Spark says."""
    if (cause := python_cause(str(error))) is not None:
        return cause
    lines = [line.strip() for line in str(error).splitlines()]
    said = next((line for line in lines if line and "An error occurred while" not in line), "")
    causes = [line.partition(": ")[2] for line in lines if line.startswith("Caused by: ")]
    return f"Spark could not do it: {said.removeprefix(': ')} {' / '.join(causes[-1:])}".rstrip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.pipeline",
        description="Jobs over the journal of operations, on Spark.",
    )
    commands = parser.add_subparsers(required=True, metavar="NAME")
    for command in COMMANDS:
        added = commands.add_parser(command.name, help=command.help, description=command.help)
        _add_common(added, command)
        command.add_arguments(added)
        added.set_defaults(command=command)
    return parser


def _add_common(parser: argparse.ArgumentParser, command: Command) -> None:
    add = parser.add_argument
    add(
        "--journal",
        required=command.needs_journal,
        metavar="DIR",
        help="folder of the journal, or any address that Spark can read",
    )
    add("--out", required=command.needs_out, metavar="DIR", help="folder of the results")
    add(
        "--on-bad-file",
        type=OnBadFile,
        choices=list(OnBadFile),
        default=OnBadFile.SKIP,
        help="leave out what cannot be read and name it, or end (default %(default)s)",
    )
    add(
        "--grace",
        type=_seconds,
        default=DEFAULT_GRACE_S,
        metavar="SECONDS",
        help="after its deadline, until an operation without an end is lost (default %(default)g)",
    )
    add(
        "--master",
        help=f"of Spark; default {DEFAULT_MASTER}, and under spark-submit the one given there",
    )
    add("--memory", default=DEFAULT_MEMORY, help="heap of the driver (default %(default)s)")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds, 0 or more")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
