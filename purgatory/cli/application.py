"""The command line as a whole: shared options, and all commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from purgatory.cli import job_commands, key_commands, server_commands, store_commands
from purgatory.cli.doctor import doctor, installed_version
from purgatory.cli.output import OK, REFUSED, STATUSES, print_line, run_reported
from purgatory.cli.session import Session, read_token

_DEFAULT_URL: Final = "http://127.0.0.1:8000"


class _Group(TyperGroup):
    """The commands; says where shared options belong."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; the error of a shared option after it says that it belongs before."""
        try:
            return super().invoke(ctx)
        except Exception as exc:
            # NoSuchOption of click, of which newer versions of typer have a copy of their own.
            option = getattr(exc, "option_name", None)
            if any(option in parameter.opts for parameter in self.params):
                exc.message += ": give it before the command"  # type: ignore[attr-defined]  # it has one
            raise


application: Final = typer.Typer(
    cls=_Group,
    name="purgatory",
    no_args_is_help=True,
    epilog=STATUSES,
    help="Park until a key fires or a deadline passes: a server's keys, waits and delayed jobs.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_given: bool) -> None:
    if is_given:
        print_line(installed_version())
        raise typer.Exit


@application.callback()
def _shared(
    context: typer.Context,
    url: Annotated[
        str, typer.Option(envvar="PURGATORY_URL", show_envvar=True, help="The server.")
    ] = _DEFAULT_URL,
    prefix: Annotated[str, typer.Option(help="The prefix of the endpoints.")] = "/purgatory",
    token: Annotated[
        str | None, typer.Option(envvar="PURGATORY_TOKEN", show_envvar=True, hidden=True)
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the token; or set PURGATORY_TOKEN."),
    ] = None,
    retry_for: Annotated[
        float, typer.Option(min=0, help="Seconds to try while the server cannot be reached.")
    ] = 10.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Lines of JSON in place of tables.")
    ] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    try:
        found = read_token(token_file, token)
    except (OSError, ValueError) as exc:
        raise typer.BadParameter(str(exc), param_hint="--token-file") from exc
    context.obj = Session(url, found, prefix, retry_for, as_json)


def _with_status(command: Callable[..., int | None]) -> Callable[..., None]:
    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        status = run_reported(command, *args, **kwargs)
        if status:
            raise typer.Exit(status)

    return run


def _report_all(group: typer.Typer) -> typer.Typer:
    for info in group.registered_commands:
        assert info.callback is not None
        info.callback = _with_status(info.callback)
    return group


for _command in (
    key_commands.wait,
    key_commands.follow,
    key_commands.fire,
    key_commands.keys,
    key_commands.waits,
    job_commands.defer,
    server_commands.stats,
    doctor,
    server_commands.monitoring,
    server_commands.token,
    server_commands.bench,
    store_commands.recover,
):
    application.command()(_command)
# Its options, --help too, are those of the pipeline.
application.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)(server_commands.report)
_report_all(application)
# An error of the application that it runs keeps its traceback.
application.command()(server_commands.worker)
application.add_typer(_report_all(job_commands.jobs), name="jobs")
application.add_typer(_report_all(store_commands.db), name="db")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name, those of the process if None; return its status."""
    try:
        application(args=None if arguments is None else list(arguments), prog_name="purgatory")
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else REFUSED
    return OK
