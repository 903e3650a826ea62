"""The command `stream`."""

from __future__ import annotations

import argparse
import os

from purgatory.pipeline.cli.command import Call, Command
from purgatory.pipeline.cli.journal_options import add_journal
from purgatory.pipeline.cli.option_types import number, whole
from purgatory.pipeline.stream.alerts import AlertService
from purgatory.pipeline.stream.queries import FOLDER, StreamingQueries, streaming_events, wait_for
from purgatory.pipeline.stream.windows import Watch

TOKEN_VARIABLE = "PURGATORY_TOKEN"

_WATCH = Watch()


def run_stream(call: Call) -> str:
    """Follow the journal until it is interrupted; or, with --once, up to its end."""
    options = call.options
    source = options.source or options.journal
    watch = Watch(
        window_s=options.window,
        delay_s=options.delay,
        expired_share=options.expired_share,
        least_ended=options.least_ended,
        least_expired=options.least_expired,
    )
    service = None
    if options.service:
        token = os.environ.get(TOKEN_VARIABLE)
        service = AlertService(options.service, name=options.name, token=token)
    events = streaming_events(
        call.spark,
        source,
        stream=options.stream,
        on_bad_file=options.on_bad_file,
        at_a_time=options.at_a_time,
    )
    live = StreamingQueries(
        call.spark, options.out, watch, service=service, on_progress=call.on_progress
    )
    queries = live.start(events, every_s=None if options.once else options.every)
    call.on_progress(f"following {source}" + ("" if options.once else "; end it with Ctrl-C"))
    try:
        wait_for(queries)
    except KeyboardInterrupt:
        call.on_progress("interrupted; the next run goes on from here")
    # A young journal has none yet: unsaid, an empty folder would look like a failure.
    return (
        f"Windows that are over, and alerts, are in {options.out}/{FOLDER}; "
        f"a window is over {options.delay} s after its end."
    )


def _check(options: argparse.Namespace) -> None:
    if options.source and options.journal:
        raise ValueError("two journals to follow: give --journal or --from, not both")
    if not (options.source or options.journal):
        raise ValueError("nothing to follow: give --journal DIR, or --from redis://HOST")


def _service_url(text: str) -> str:
    try:
        return AlertService(text).url
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_journal(parser)
    add = parser.add_argument
    add("--from", dest="source", metavar="URL", help="a Redis server, instead of --journal")
    add("--stream", default="purgatory:journal", help="in Redis (default %(default)s)")
    add(
        "--at-a-time",
        type=whole(1),
        metavar="COUNT",
        help="files, or entries, of one batch; by default all",
    )
    add("--once", action="store_true", help="read what is there, and end")
    add(
        "--every",
        type=number(least=0, most=86_400),
        default=10.0,
        metavar="SECONDS",
        help="how often to look for what is new (default %(default)g)",
    )
    add(
        "--window",
        type=whole(1),
        default=_WATCH.window_s,
        metavar="SECONDS",
        help="the time that is summed up in a row (default %(default)s)",
    )
    add(
        "--delay",
        type=whole(1),
        default=_WATCH.delay_s,
        metavar="SECONDS",
        help="how late an event may come (default %(default)s)",
    )
    add(
        "--expired-share",
        type=number(above=0, most=1),
        default=_WATCH.expired_share,
        metavar="SHARE",
        help="of what ended in a window, by kind, that is too much (default %(default)s)",
    )
    add(
        "--least-ended",
        type=whole(1),
        default=_WATCH.least_ended,
        metavar="COUNT",
        help="in a window, for that to be said (default %(default)s)",
    )
    add(
        "--least-expired",
        type=whole(1),
        default=_WATCH.least_expired,
        metavar="COUNT",
        help="in a window, on a key that is stuck (default %(default)s)",
    )
    add(
        "--service",
        type=_service_url,
        metavar="URL",
        help="of a purgatory's router, to fire the alerts there",
    )
    add("--name", default="live", help="whose alerts they are, there (default %(default)s)")


COMMAND = Command(
    name="stream",
    help="the journal as it grows: waits, stuck keys, exploding timeouts, alerts",
    run=run_stream,
    add_arguments=_add_arguments,
    check=_check,
)
