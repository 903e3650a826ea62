"""The command `stream`."""

from __future__ import annotations

import argparse
import os

from purgatory.pipeline.cli.command import (
    Call,
    Command,
    NumberOption,
    add_journal,
    add_numbers,
    number,
    shown,
    whole,
)
from purgatory.pipeline.stream.alerts import AlertService
from purgatory.pipeline.stream.queries import FOLDER, StreamingQueries, streaming_events, wait_for
from purgatory.pipeline.stream.windows import AlertThresholds

TOKEN_VARIABLE = "PURGATORY_TOKEN"  # noqa: S105 - the name of a variable

_THRESHOLDS = AlertThresholds()
_NUMBERS: tuple[NumberOption, ...] = (
    ("--every", number(least=0, most=86_400), "SECONDS", 10.0, "between two batches"),
    ("--window", whole(1), "SECONDS", _THRESHOLDS.window_s, "of time that a row sums up"),
    ("--delay", whole(1), "SECONDS", _THRESHOLDS.delay_s, "that an event may be late"),
    (
        *("--expired-share", number(above=0, most=1), "SHARE", _THRESHOLDS.expired_share),
        "of what ended in a window, by kind, that is an alert",
    ),
    (
        *("--least-ended", whole(1), "COUNT", _THRESHOLDS.least_ended),
        "of ends in a window, for such an alert",
    ),
    (
        *("--least-expired", whole(1), "COUNT", _THRESHOLDS.least_expired),
        "in a window, for an alert on a stuck key",
    ),
    (
        *("--clock-tolerance", whole(0), "SECONDS", _THRESHOLDS.tolerance_s),
        "that an event may be dated after the present; later ones are not counted",
    ),
    (
        *("--silent", whole(0), "SECONDS", _THRESHOLDS.silent_s),
        "without an event that are an alert; 0: never",
    ),
)


def run_stream(call: Call) -> str:
    """Follow the journal until interrupted, or with --once up to its end."""
    options = call.options
    source = options.source or options.journal
    thresholds = AlertThresholds(
        window_s=options.window,
        delay_s=options.delay,
        expired_share=options.expired_share,
        least_ended=options.least_ended,
        least_expired=options.least_expired,
        tolerance_s=options.clock_tolerance,
        silent_s=options.silent,
    )
    service = None
    if options.service:
        token = os.environ.get(TOKEN_VARIABLE)
        service = AlertService(options.service, name=options.name, token=token)
    call.on_progress(f"reading {shown(source)}")
    events = streaming_events(
        call.spark,
        source,
        stream=options.stream,
        on_bad_file=options.on_bad_file,
        at_a_time=options.at_a_time,
    )
    live = StreamingQueries(
        call.spark, options.out, thresholds, service=service, on_progress=call.on_progress
    )
    queries = live.start(events, every_s=None if options.once else options.every)
    until = "up to its present end" if options.once else "until Ctrl-C"
    results = f"{shown(options.out)}/{FOLDER}"
    call.on_progress(f"following {shown(source)} {until}; results go to {results}")
    try:
        wait_for(queries, live.check)
    except KeyboardInterrupt:
        call.on_progress("interrupted; the next run continues from here")
    # A young journal has none yet: without this, an empty folder would look like a failure.
    return (
        f"Completed windows, and alerts, are in {options.out}/{FOLDER}; "
        f"a window is complete {options.delay} s after its end."
    )


def _check(options: argparse.Namespace) -> None:
    if options.source and options.journal:
        raise ValueError("two journals: give --journal or --from, not both")
    if not (options.source or options.journal):
        raise ValueError("no journal: give --journal DIR, or --from redis://HOST")


def _service_url(text: str) -> str:
    try:
        return AlertService(text).url
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_journal(parser)
    add = parser.add_argument
    add("--from", dest="source", metavar="URL", help="URL of a Redis server, instead of --journal")
    add("--stream", default="purgatory:journal", help="its name in Redis (default %(default)s)")
    add(
        "--at-a-time",
        type=whole(1),
        metavar="COUNT",
        help="files, or entries, of a batch; by default all",
    )
    add("--once", action="store_true", help="read the present journal and stop")
    add_numbers(parser, *_NUMBERS)
    add(
        "--service",
        type=_service_url,
        metavar="URL",
        help="of a purgatory's router, where the alerts are fired",
    )
    add(
        "--name",
        default="live",
        help="part of the Idempotency-Keys of alerts (default %(default)s)",
    )


COMMAND = Command(
    name="stream",
    help="the journal as it grows: waits, stuck keys, exploding timeouts, alerts",
    run=run_stream,
    add_arguments=_add_arguments,
    check=_check,
)
