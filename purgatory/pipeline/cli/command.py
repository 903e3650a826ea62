"""What a command of the pipeline is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from purgatory.pipeline.console.progress import OnProgress
from purgatory.pipeline.outcomes.outcome_table import OutcomeTable
from purgatory.pipeline.spark.tables import Tables


def no_check(options: argparse.Namespace) -> None:
    """Find nothing wrong with `options`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One job as a command: `python -m purgatory.pipeline NAME`.

    A new job is a `Command` more in `purgatory.pipeline.cli.commands`.
    """

    name: str
    help: str
    run: Callable[[Call], str | None]
    """Does the work; returns what there is to say on stdout. Raises PurgatoryError or ValueError
    for what the user can mend."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """Adds to --out and the options of the session, which all have."""
    check: Callable[[argparse.Namespace], object] = field(default=no_check)
    """Raises ValueError for options that do not go together, before Spark is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A command that was called: its options, and what it works with."""

    options: argparse.Namespace
    spark: SparkSession
    on_progress: OnProgress

    @property
    def outcomes(self) -> OutcomeTable:
        """The table of outcomes below --out."""
        return OutcomeTable(self.spark, f"{self.options.out}/outcomes")

    @property
    def tables(self) -> Tables:
        """The other results below --out."""
        return Tables(self.spark, self.options.out)
