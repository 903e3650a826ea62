"""`python -m purgatory.pipeline NAME --journal DIR --out DIR`, or by spark-submit."""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from purgatory.environment import discard_closed_streams
from purgatory.errors import PurgatoryError
from purgatory.pipeline.cli.command import (
    LEAST_HEAP_MIB,
    Command,
    folder_address,
    heap,
    master,
)
from purgatory.pipeline.cli.commands import COMMANDS
from purgatory.pipeline.console import Progress
from purgatory.pipeline.errors import NothingToReadError, way_out_of_system
from purgatory.pipeline.run import (
    Run,
    correctable_errors,
    is_for_duckdb,
    is_short,
    open_duckdb,
)
from purgatory.pipeline.spark.folder import folder_at
from purgatory.pipeline.spark.session import (
    DEFAULT_MASTER,
    DEFAULT_MEMORY,
    error_message,
    is_submitted,
    remote_address,
    spark_session,
)

_DESCRIPTION = """Jobs over the journal of operations. outcomes, waits, advise and report run on
DuckDB in this process, without Java, if folders are local and the new files fit into memory, else
on Spark; --engine chooses. The others run on Spark."""


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name; return the exit status.

    0 is success, 1 an error that the user can correct, 2 a wrong argument; after a signal it is
    128 plus its number, as in a shell: 130 for Ctrl-C, 143 for SIGTERM.
    """
    discard_closed_streams()
    # Not `parse_args`: it shows the usage of all commands for an unknown option of one.
    options, unknown = _parser().parse_known_args(arguments)
    command: Command = options.command
    try:
        if unknown:
            raise ValueError(f"unrecognized arguments: {' '.join(unknown)}")
        command.check(options)
    except ValueError as error:
        options.parser.error(str(error))
    on_progress = Progress()
    signals: Sequence[int] = ()
    try:
        with plain_interrupts() as signals, ExitStack() as uncollected:
            uncollected.enter_context(_without_collector())
            _check_folders(options)
            journal = getattr(options, "journal", None)
            run = Run(options.out, journal=journal, options=options, on_progress=on_progress)
            _start(run)
            if not run.is_duckdb:
                # Spark may take hours.
                uncollected.close()
            output = command.run(run)
    except BaseException as error:
        if signals or isinstance(error, KeyboardInterrupt):
            return _failed(command, "interrupted", status=128 + (*signals, signal.SIGINT)[0])
        if not isinstance(error, correctable_errors()):
            raise
        # For debugging; the sentence that follows is meant for users.
        if options.verbose:
            traceback.print_exc()
        is_ours = isinstance(error, PurgatoryError | ValueError)
        sentence = str(error) if is_ours else error_message(error)
        return _failed(command, f"{sentence}{_way_out(error, options)}")
    on_progress("done")
    if output:
        sys.stdout.write(f"{output}\n")
    return 0


@contextmanager
def plain_interrupts() -> Iterator[list[int]]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt, and nothing else, until the end of a `with`.

    Yields the signals so far: DuckDB raises an error of its own instead. What is temporary is then
    removed as at any end of the process.

    Spark's own handler asks the JVM to cancel its jobs in the middle of another call to it: both
    fail then, and py4j logs a trace of each. py4j's logs of the interrupt itself are suppressed, as
    it is raised besides. Cancelling jobs is up to the caller. Does nothing outside the main thread,
    the only one that receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = [(number, signal.signal(number, interrupt)) for number in _SIGNALS]
    root, py4j = logging.getLogger(), logging.getLogger("py4j")
    level = py4j.level
    root.addFilter(_is_of_others)
    py4j.setLevel(logging.CRITICAL)
    try:
        yield received
    finally:
        py4j.setLevel(level)
        root.removeFilter(_is_of_others)
        for number, handler in before:
            signal.signal(number, handler)


def _is_of_others(record: logging.LogRecord) -> bool:
    # py4j logs interrupts to the root logger rather than to its own.
    return record.module != "java_gateway"


def _start(run: Run) -> None:
    """Set the engine of a run."""
    options = run.options
    if is_for_duckdb(run):
        run.engine = open_duckdb()
        return
    run.on_progress(_start_of_spark(options.master))
    run.engine = spark_session(
        f"purgatory {options.command.name}",
        master=options.master,
        memory=options.memory,
        is_short=is_short(run),
    )


def _start_of_spark(master: str | None) -> str:
    if (address := remote_address(master)) is not None:
        # Without its parameters, of which one may be a token.
        return f"connecting to Spark: {address.partition(';')[0].rstrip('/')}"
    if master is None and is_submitted():
        return "starting Spark"
    return f"starting Spark: {master or DEFAULT_MASTER}"


def _check_folders(options: argparse.Namespace) -> None:
    # Before they are listed, and a table is made from all of the journal.
    paths = {name: getattr(options, name, None) for name in ("journal", "out")}
    folders = {name: folder_at(path) for name, path in paths.items() if path}
    for name, folder in folders.items():
        if folder.is_file():
            raise ValueError(f"--{name} {paths[name]} is a file: give the folder")
    if "journal" in folders and folders["journal"].holds(folders["out"]):
        raise ValueError(
            f"--out {paths['out']} is within --journal {paths['journal']}: give a folder outside, "
            "or the results would be read as the journal"
        )
    try:
        folders["out"].check_writable()
    except OSError as error:
        raise ValueError(
            f"--out {paths['out']} cannot be written: {error.strerror or error}: give another "
            "folder"
        ) from error


def _way_out(error: Exception, options: argparse.Namespace) -> str:
    """Return what else helps, after a blank; "" if the error says it all."""
    if way := way_out_of_system(error):
        return f". {way}, and run this again: what was published before is as it was."
    is_of_results = getattr(options, "needs_rollups", False) and options.journal is None
    if is_of_results and isinstance(error, NothingToReadError):
        name = options.command.name
        return f" Or give --journal DIR, with which {name} runs the jobs before it."
    return ""


@contextmanager
def _without_collector() -> Iterator[None]:
    """Do not search for garbage in cycles until the end of a `with`.

    Searching what a year of hours has in manifests takes a tenth of the CPU of adding one, and
    finds next to nothing: the tables are in DuckDB and in arrays.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _failed(command: Command, sentence: str, status: int = 1) -> int:
    sys.stderr.write(f"{command.name}: {sentence}\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.pipeline",
        description=_DESCRIPTION,
    )
    commands = parser.add_subparsers(required=True, metavar="NAME")
    for command in COMMANDS:
        added = commands.add_parser(command.name, help=command.help, description=command.help)
        added.add_argument(
            "--out", type=folder_address, required=True, metavar="DIR", help="folder of the results"
        )
        command.add_arguments(added)
        _add_session(added)
        added.set_defaults(command=command, parser=added)
    return parser


def _add_session(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--master",
        type=master,
        metavar="URL",
        help=f"of Spark, sc://HOST:PORT for Spark Connect; default {DEFAULT_MASTER}, and under "
        "spark-submit the one given there",
    )
    add(
        "--memory",
        type=heap,
        default=DEFAULT_MEMORY,
        metavar="SIZE",
        help=f"heap of the driver, {LEAST_HEAP_MIB}m or more (default %(default)s)",
    )
    add("--verbose", action="store_true", help="print the traceback of an error")


if __name__ == "__main__":
    sys.exit(main())
