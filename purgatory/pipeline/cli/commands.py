"""All commands; those that need only a few options are defined here."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from purgatory.journal.labels import NAME
from purgatory.pipeline.advise import advice
from purgatory.pipeline.advise.advice import Targets
from purgatory.pipeline.advise.workers import Capacity
from purgatory.pipeline.cli import replay_command, schedule_command
from purgatory.pipeline.cli.command import (
    POSITIVE,
    Command,
    add_numbers,
    folder_address,
    number,
    whole,
)
from purgatory.pipeline.console import counted
from purgatory.pipeline.errors import NothingToReadError, TargetsMissedError
from purgatory.pipeline.outcomes.event_summary import DEFAULT_TOLERANCE_S, FutureRecords
from purgatory.pipeline.outcomes.journal_files import OnBadFile
from purgatory.pipeline.outcomes.manifest import missing_records
from purgatory.pipeline.outcomes.outcome_table import DEFAULT_GRACE_S
from purgatory.pipeline.report import page
from purgatory.pipeline.report.changes import RunSummary, summary_of
from purgatory.pipeline.report.findings import findings
from purgatory.pipeline.rollups.wait_tables import JOB as WAITS
from purgatory.pipeline.run import EngineName, Run
from purgatory.pipeline.sql.selection import Selection

_CAPACITY = Capacity()
_WEEK = "week"


def run_outcomes(run: Run) -> str:
    """Update the outcomes from the journal."""
    options = run.options
    update = run.update(
        on_bad_file=options.on_bad_file,
        grace_s=options.grace,
        tolerance_s=options.clock_tolerance,
    )
    lines = [
        f"{counted(update.operations, 'operation')} in {run.outcomes.folder}: "
        f"{counted(update.rows, 'record')} of {counted(update.new_files, 'new file')}, "
        f"{counted(len(update.written_hours), 'hour')} written."
    ]
    if update.unknown_rows:
        unknown = f"{update.unknown_rows:,}"
        lines.append(f"Records unknown, incomplete or of an impossible time, skipped: {unknown}")
    if update.is_repaired:
        lines.append("Repaired: the outcomes had records dated in the future.")
    lines += _future_lines(update.future)
    lines += [
        f"Missing records of {worker}, by gaps in their numbers: {count:,}"
        for worker, count in missing_records(run.manifest).items()
    ]
    lines += [f"Replaced: {path}: {what}" for path, what in sorted(update.replaced.items())]
    if update.bad:
        lines.append(f"Skipped files: {len(update.bad):,}")
        lines += [f"  {path}: {reason}" for path, reason in sorted(update.bad.items())]
    return "\n".join(lines)


def _future_lines(future: Mapping[str, FutureRecords]) -> list[str]:
    if not future:
        return []
    records = sum(of_worker.records for of_worker in future.values())
    return [
        f"Records dated in the future, set aside until then: {records:,}. "
        "A clock is wrong, of the worker or of this machine:",
        *(
            f"  {worker}: {counted(of_worker.records, 'record')}, up to {of_worker.last}"
            for worker, of_worker in sorted(future.items())
        ),
    ]


def run_waits(run: Run) -> str:
    """Write the tables of waits; with a journal, update the outcomes first."""
    said = _after_outcomes(run)
    run.write_waits()
    return f"{said}Tables are in {run.tables.folder}/{WAITS}."


def run_advise(run: Run) -> str:
    """Write and return the advice; with a journal, run the jobs before it first."""
    said = f"{run_waits(run)}\n" if run.journal else ""
    options = run.options
    capacity = Capacity(
        parked=options.parked_per_worker, cpu_us=options.cpu_us, utilisation=options.utilisation
    )
    found = advice.run(run.manifest, run.tables, options.targets or Targets(), capacity)
    lines = [f"{timeout.kind}: {timeout.reason}" for timeout in found.timeouts]
    return said + "\n".join([*lines, f"workers: {found.workers.reason}"])


def run_report(run: Run) -> str:
    """Write the report; with a journal, run the jobs before it first.

    Raises TargetsMissedError, once it is written, if the targets were given and one is missed.
    """
    options = run.options
    examples, against = None, None
    if selection := _selection(options):
        said = _after_outcomes(run)
        against = _against(run, selection)
        run = run.selected(selection, "selected")
        run_advise(run)
        examples = run.examples()
    else:
        said = f"{run_advise(run)}\n" if run.journal else ""
    where, missed = page.write(run, examples, against)
    said += f"The report is {where}"
    if options.targets and missed:
        raise TargetsMissedError(f"{said}\nMissed: {'; '.join(missed)}")
    return said


def _selection(options: argparse.Namespace) -> Selection | None:
    found = Selection(
        since=options.since,
        until=options.until,
        where=tuple(options.where),
        by=options.by,
        depth=options.prefix_depth,
    )
    return None if found == Selection() and not options.against else found


def _against(run: Run, selection: Selection) -> tuple[str, RunSummary] | None:
    """Return what a selection is compared with: what is asked for, or the week before.

    Raises NothingToReadError if that was asked for, and there is none.
    """
    asked = run.options.against
    if not asked and not selection.since:
        return None
    as_of = run.manifest.as_of_time()
    assert as_of is not None, "a published table has an event"
    other = selection.against(asked or _WEEK, as_of)
    try:
        found = run.selected(other, "selected")
    except NothingToReadError:
        if asked:
            raise
        return None
    run_advise(found)
    name = "a week before" if asked in (None, _WEEK) else f"{asked}"
    return name, summary_of(findings(found), None)


def _after_outcomes(run: Run) -> str:
    return f"{run_outcomes(run)}\n" if run.journal else ""


def _add_waits(parser: argparse.ArgumentParser, *, needs_rollups: bool = True) -> None:
    parser.set_defaults(needs_rollups=needs_rollups)
    add = parser.add_argument
    add(
        "--engine",
        choices=list(EngineName),
        default=EngineName.AUTO,
        help="what computes the tables; auto is duckdb for local folders whose new files fit into "
        "memory, else spark (default %(default)s)",
    )
    add(
        "--journal",
        type=folder_address,
        required=not needs_rollups,
        metavar="DIR",
        help="folder of the journal, or any address that Spark can read",
    )
    add(
        "--on-bad-file",
        type=OnBadFile,
        choices=list(OnBadFile),
        default=OnBadFile.SKIP,
        help="skip and name files that cannot be read, or fail (default %(default)s)",
    )
    seconds = number("of 0 or more", lambda found: found >= 0)
    until = "after its deadline, until an operation without an end is lost"
    ahead = "that a record may be dated after the present, before it is set aside"
    add_numbers(
        parser,
        ("--grace", seconds, "SECONDS", DEFAULT_GRACE_S, until),
        ("--clock-tolerance", seconds, "SECONDS", DEFAULT_TOLERANCE_S, ahead),
    )


def _parsed_targets(text: str) -> Targets:
    try:
        return Targets.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_advise(parser: argparse.ArgumentParser) -> None:
    _add_waits(parser)
    defaults = str(Targets()).replace("%", "%%")
    parser.add_argument(
        "--targets",
        type=_parsed_targets,
        metavar="NAME=SHARE,...",
        help="the greatest shares of a kind that may come to harm; if given, a report that misses "
        f"one exits with 1 (default {defaults})",
    )
    share = number("above 0 and below 1", lambda found: 0 < found < 1)
    add_numbers(
        parser,
        ("--parked-per-worker", whole(1), "COUNT", _CAPACITY.parked, "operations in a worker"),
        ("--cpu-us", POSITIVE, "US", _CAPACITY.cpu_us, "CPU of an operation with request"),
        ("--utilisation", share, "SHARE", _CAPACITY.utilisation, "of a worker that is to be used"),
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    _add_advise(parser)
    add = parser.add_argument
    add("--title", default=page.DEFAULT_TITLE, help="of the page")
    of = "report on a part only, in selected/: operations that began to wait"
    add("--since", type=_time, metavar="TIME", help=f"{of} at TIME (ISO, UTC) or later")
    add("--until", type=_time, metavar="TIME", help=f"{of} before TIME")
    label = "LABEL=VALUE"
    add("--where", type=_pair, action="append", default=[], metavar=label, help=f"{of} with it")
    add("--by", type=_label, metavar="LABEL", help="requests by its values instead of their kinds")
    add("--against", type=_other, metavar=f"{label}|week", help="compare with this part")
    depth = "segments of a key that are its prefix (default %(default)s)"
    add("--prefix-depth", type=whole(1), default=1, metavar="COUNT", help=depth)


def _time(value: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{value!r}: give a time such as 2026-11-20T06:00"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _label(name: str) -> str:
    if NAME.fullmatch(name) is None:
        raise argparse.ArgumentTypeError(f"{name!r}: give the name of a label, or kind or worker")
    return name


def _pair(pair: str) -> tuple[str, str]:
    name, is_pair, value = pair.partition("=")
    if not is_pair:
        raise argparse.ArgumentTypeError(f"{pair!r}: give LABEL=VALUE")
    return _label(name), value


def _other(value: str) -> str:
    if value != _WEEK:
        _pair(value)
    return value


COMMANDS = (
    Command(
        name="outcomes",
        help="one row for each operation, updated from the journal",
        run=run_outcomes,
        add_arguments=partial(_add_waits, needs_rollups=False),
    ),
    Command(
        name="waits",
        help="counts, waits, hot keys and concurrency; with --journal, outcomes first",
        run=run_waits,
        add_arguments=_add_waits,
    ),
    Command(
        name="advise",
        help="timeouts and workers; with --journal, outcomes and waits first",
        run=run_advise,
        add_arguments=_add_advise,
    ),
    Command(
        name="report",
        help="an HTML page with charts and advice; with --journal, all jobs before it first",
        run=run_report,
        add_arguments=_add_report,
    ),
    replay_command.COMMAND,
    schedule_command.COMMAND,
)
