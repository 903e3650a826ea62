"""Commands of the pipeline, and their calls."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from purgatory.pipeline.cli.engine import Engine
from purgatory.pipeline.cli.work import Work
from purgatory.pipeline.console.progress import OnProgress
from purgatory.pipeline.outcomes.manifest import Manifest
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.spark.tables import Tables


def no_check(options: argparse.Namespace) -> None:
    """Accept all `options`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One job as a command: `python -m purgatory.pipeline NAME`.

    A new one is added to `purgatory.pipeline.cli.commands.COMMANDS`.
    """

    name: str
    help: str
    run: Callable[[Call], str | None]
    """Runs the job and returns its output on stdout, if any. Raises PurgatoryError or ValueError
    for errors that the user can correct."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """Adds the options that not all commands have."""
    check: Callable[[argparse.Namespace], object] = field(default=no_check)
    """Raises ValueError for options that contradict each other, before Spark is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a command: its options, work, engine and progress log."""

    options: argparse.Namespace
    work: Work
    engine: Engine
    on_progress: OnProgress
    session: SparkSession | None = None
    """None if the engine is not Spark."""

    @property
    def spark(self) -> SparkSession:
        """The session of a command that runs on Spark only."""
        assert self.session is not None, "the command has no option --engine"
        return self.session

    @property
    def outcomes(self) -> OutcomeTable:
        """The table of outcomes below --out."""
        return self.engine.outcome_table(self.options.out)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the outcomes below --out, which must not be changed."""
        return self.engine.manifest(self.options.out)

    @property
    def tables(self) -> Tables:
        """The other results below --out."""
        return self.engine.tables(self.options.out)
