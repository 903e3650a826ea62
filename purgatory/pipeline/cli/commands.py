"""The commands: each a thin one around the job of its name."""

from __future__ import annotations

import argparse

from purgatory.pipeline.advise import job as advise_job
from purgatory.pipeline.advise.workers import Capacity
from purgatory.pipeline.cli import replay_command, schedule_command, stream_command
from purgatory.pipeline.cli.command import Call, Command
from purgatory.pipeline.cli.journal_options import add_journal
from purgatory.pipeline.cli.option_types import number, whole
from purgatory.pipeline.console.formatting import counted
from purgatory.pipeline.outcomes.outcome_table import DEFAULT_GRACE_S
from purgatory.pipeline.report import job as report_job
from purgatory.pipeline.waits import job as waits_job

_CAPACITY = Capacity()
_TARGETS = advise_job.AdviceTargets()


def run_outcomes(call: Call) -> str:
    """Bring the outcomes up to date with the journal."""
    update = call.outcomes.update(
        call.options.journal,
        on_bad_file=call.options.on_bad_file,
        grace_s=call.options.grace,
        on_progress=call.on_progress,
    )
    lines = [
        f"{counted(update.operations, 'operation')} in {call.outcomes.folder}: "
        f"{counted(update.rows, 'record')} of {counted(update.new_files, 'new file')}, "
        f"{counted(len(update.written_hours), 'hour')} written."
    ]
    if update.unknown_rows:
        lines.append(f"Records that are no event that we know: {update.unknown_rows:,}")
    if update.bad:
        lines.append(f"Files left out: {len(update.bad):,}")
        lines += [f"  {path}: {reason}" for path, reason in sorted(update.bad.items())]
    return "\n".join(lines)


def run_waits(call: Call) -> str:
    """Write the tables of waits, and the outcomes before that if there is a journal."""
    said = _after_outcomes(call)
    waits_job.run(call.outcomes, call.tables, call.on_progress)
    return f"{said}Tables are in {call.tables.folder}/{waits_job.JOB}."


def run_advise(call: Call) -> str:
    """Write and tell the advice, and do all before that if there is a journal."""
    said = f"{run_waits(call)}\n" if call.options.journal else ""
    found = advise_job.run(call.outcomes, call.tables, _targets(call.options), call.on_progress)
    lines = [f"{timeout.kind}: {timeout.reason}" for timeout in found.timeouts]
    lines += [f"wheel: {found.geometry.reason}", f"workers: {found.workers.reason}"]
    return said + "\n".join(lines)


def run_report(call: Call) -> str:
    """Write the report, and do all before that if there is a journal."""
    said = f"{run_advise(call)}\n" if call.options.journal else ""
    where = report_job.run(call.outcomes, call.tables, call.on_progress, call.options.title)
    return f"{said}The report is {where}"


def _after_outcomes(call: Call) -> str:
    return f"{run_outcomes(call)}\n" if call.options.journal else ""


def _targets(options: argparse.Namespace) -> advise_job.AdviceTargets:
    return advise_job.AdviceTargets(
        expired_share=options.expired_share,
        max_tick_ms=options.max_tick_ms,
        capacity=Capacity(
            parked=options.parked_per_worker,
            cpu_us=options.cpu_us,
            utilisation=options.utilisation,
        ),
    )


def _add_outcomes(parser: argparse.ArgumentParser) -> None:
    add_journal(parser, is_required=True)
    _add_grace(parser)


def _add_waits(parser: argparse.ArgumentParser) -> None:
    add_journal(parser)
    _add_grace(parser)


def _add_grace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grace",
        type=number(least=0),
        default=DEFAULT_GRACE_S,
        metavar="SECONDS",
        help="after its deadline, until an operation without an end is lost (default %(default)g)",
    )


def _add_advise(parser: argparse.ArgumentParser) -> None:
    _add_waits(parser)
    add = parser.add_argument
    share = number(above=0, below=1)
    add(
        "--expired-share",
        type=share,
        default=_TARGETS.expired_share,
        metavar="SHARE",
        help="the share of operations that may expire (default %(default)s)",
    )
    add(
        "--max-tick-ms",
        type=whole(1),
        default=_TARGETS.max_tick_ms,
        metavar="MS",
        help="how late a timer may be (default %(default)s)",
    )
    add(
        "--parked-per-worker",
        type=whole(1),
        default=_CAPACITY.parked,
        metavar="COUNT",
        help="operations that a worker may hold (default %(default)s)",
    )
    add(
        "--cpu-us",
        type=number(above=0),
        default=_CAPACITY.cpu_us,
        metavar="US",
        help="CPU for one operation, its request included (default %(default)g)",
    )
    add(
        "--utilisation",
        type=share,
        default=_CAPACITY.utilisation,
        metavar="SHARE",
        help="the share of a worker that is to be used (default %(default)s)",
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    _add_advise(parser)
    parser.add_argument("--title", default=report_job.DEFAULT_TITLE, help="of the page")


COMMANDS = (
    Command(
        name="outcomes",
        help="one row for each operation, kept up with the journal",
        run=run_outcomes,
        add_arguments=_add_outcomes,
    ),
    Command(
        name="waits",
        help="counts, waits, hot keys and what was parked; with --journal, outcomes first",
        run=run_waits,
        add_arguments=_add_waits,
    ),
    Command(
        name="advise",
        help="timeouts, wheel and workers; with --journal, all before it first",
        run=run_advise,
        add_arguments=_add_advise,
    ),
    Command(
        name="report",
        help="an HTML page with all of it; with --journal, all before it first",
        run=run_report,
        add_arguments=_add_report,
    ),
    replay_command.COMMAND,
    schedule_command.COMMAND,
    stream_command.COMMAND,
)
