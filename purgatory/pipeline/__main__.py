"""`python -m purgatory.pipeline NAME --journal DIR --out DIR`, or by spark-submit."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from purgatory.errors import PurgatoryError
from purgatory.pipeline.command import Call, Command
from purgatory.pipeline.commands import COMMANDS
from purgatory.pipeline.folder import Folder
from purgatory.pipeline.option_types import LEAST_HEAP_MIB, heap
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
    try:
        command.check(options)
    except ValueError as error:
        options.parser.error(str(error))
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
        path = getattr(options, name, None)
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
        added.add_argument("--out", required=True, metavar="DIR", help="folder of the results")
        command.add_arguments(added)
        _add_session(added)
        added.set_defaults(command=command, parser=added)
    return parser


def _add_session(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--master",
        metavar="URL",
        help=f"of Spark; default {DEFAULT_MASTER}, and under spark-submit the one given there",
    )
    add(
        "--memory",
        type=heap,
        default=DEFAULT_MEMORY,
        metavar="SIZE",
        help=f"heap of the driver, {LEAST_HEAP_MIB}m or more (default %(default)s)",
    )


if __name__ == "__main__":
    sys.exit(main())
