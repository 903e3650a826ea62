"""The output of commands: tables for people, JSON lines for scripts, errors and exit statuses."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, ParamSpec

from rich.console import Console
from rich.table import Table
from rich.text import Text

from purgatory.cli.session import Session
from purgatory.client import RefusedError, ServerUnavailableError
from purgatory.errors import CursorExpiredError, PurgatoryError
from purgatory.log_text import escaped

# Characters; output that is no terminal is not wrapped.
_UNLIMITED: Final = 1_000_000
_MIN_WIDTH: Final = 80
# Columns that are never wrapped: people copy from them, or compare them.
_WHOLE: Final = frozenset({"id", "state", "outcome", "deadline", "due", "attempt", "wait_id"})
# Columns that are cut, as one line a row is easier to read.
_CUT: Final = frozenset({"handler", "keys", "error"})
# A JSON pointer and a sentence.
_POINTER: Final = re.compile(r"/(\S+): (.*)", re.DOTALL)


def print_json(document: Any) -> None:
    """Print a line of JSON at once: a script may be reading."""
    line = json.dumps(document, ensure_ascii=False, default=str)
    if not line.isprintable():
        # Half a character could not be written, and others would control the terminal.
        line = json.dumps(document, default=str).replace("\x7f", "\\u007f")
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_line(text: str) -> None:
    """Print a line at once, without what would control the terminal."""
    sys.stdout.write(escaped(text) + "\n")
    sys.stdout.flush()


def print_result(document: Any, text: str, *, as_json: bool) -> None:
    """Print what came of a command: a line of text, or the document as JSON."""
    if as_json:
        print_json(document)
    else:
        print_line(text)


def print_error(text: str) -> None:
    """Print a sentence for people, beside the output."""
    sys.stderr.write(escaped(text) + "\n")


def without_pointer(text: str) -> str:
    """Return a sentence of the server with the place in the request that it is about in words."""
    match = _POINTER.fullmatch(text)
    if match is None:
        return text
    parts = [part.replace("~1", "/").replace("~0", "~") for part in match[1].split("/")]
    place = f"key {parts[1]}" if len(parts) == 2 and parts[0] == "keys" else " ".join(parts)
    return f"{place}: {match[2]}"


def is_terminal() -> bool:
    """Return True iff the output goes to a terminal."""
    return sys.stdout.isatty()


def new_console() -> Console:
    """Return the console for the output, as wide as a line may be."""
    if not is_terminal():
        return Console(width=_UNLIMITED)
    console = Console()
    # In a narrower one, rich would cut ids: the terminal itself breaks the lines.
    console.width = max(console.width, _MIN_WIDTH)
    return console


def print_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, as_json: bool) -> int:
    """Print a table, or each row as a line of JSON; return how many there were."""
    count = 0
    if as_json:
        for row in rows:
            print_json(row)
            count += 1
        return count
    table = new_table(columns)
    for row in rows:
        table.add_row(*(_cell_of(name, row.get(name)) for name in columns))
        count += 1
    new_console().print(table)
    return count


def print_fields(fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one thing: a field a line, or JSON."""
    if as_json:
        print_json(fields)
        return
    table = Table.grid(padding=(0, 2))
    for name, value in fields.items():
        if value is not None:
            table.add_row(Text(name, style="bold"), cell(value))
    new_console().print(table)


def new_table(columns: Sequence[str]) -> Table:
    """Return a table whose headers are the names of its columns."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold", no_wrap=name in _WHOLE)
    return table


def _cell_of(column: str, value: Any) -> Text:
    text = cell(value)
    if column in _CUT:
        # Of the text, as rich does not narrow a column that has it.
        text.no_wrap, text.overflow = True, "ellipsis"
    return text


def cell(value: Any) -> Text:
    """Return a value as text: never as markup, which keys and payloads could contain."""
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, str):
        return Text(escaped(value))
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return Text(escaped(", ".join(value)))
    return Text(escaped(json.dumps(value, ensure_ascii=False, default=str)))


def duration(milliseconds: float) -> str:
    """Return a duration for people."""
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, whose plural has an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def local_time(at: datetime | int | str) -> str:
    """Return a time, in milliseconds or as the server has it, in the zone of this machine."""
    if isinstance(at, int):
        at = datetime.fromtimestamp(at / 1000, UTC)
    elif isinstance(at, str):
        at = datetime.fromisoformat(at)
    return at.astimezone().isoformat(sep=" ", timespec="seconds")


_ABOUT_ADDRESS: Final = (
    "Is it running? --url (or PURGATORY_URL) is its address, and --retry-for the seconds for which "
    "it is tried again"
)
_ABOUT_PATH: Final = (
    "Check --url (or PURGATORY_URL), which is without the prefix, and --prefix; or the server does "
    "not offer these endpoints"
)
_ABOUT_MISSING: Final = "Set PURGATORY_TOKEN, or give --token-file"
_ABOUT_UNKNOWN: Final = "This server does not know the token in PURGATORY_TOKEN or --token-file"


def with_way_out(sentence: str, error: Exception, session: object) -> str:
    """Return `sentence`, and after it what the options of the command have to do with `error`.

    `session` is the Session of the command, or something else if it has none.
    """
    has_token = isinstance(session, Session) and session.token is not None
    match error:
        case ServerUnavailableError() if error.__cause__ is not None:
            way_out = _ABOUT_ADDRESS
        case RefusedError(status=401):
            way_out = _ABOUT_UNKNOWN if has_token else _ABOUT_MISSING
        case RefusedError(status=404, slug="" | "not-found"):
            way_out = _ABOUT_PATH
        case _:
            return sentence
    return f"{sentence.rstrip('.')}. {way_out}."


OK: Final = 0
REFUSED: Final = 1
"""The server or a store refused, or a check failed. 2 is for what typer refuses."""
EXPIRED: Final = 3
SIGNALS_LOST: Final = 4
"""A cursor has expired: read the state again."""
UNAVAILABLE: Final = 5
CANCELLED: Final = 6
"""The key was deleted, or the wait ended by its id."""
INTERRUPTED: Final = 130

STATUSES: Final = """\
Exit status: 0 fired or done, 1 refused, 2 wrong usage, 3 expired, 4 signals were lost (the cursor
is too old), 5 the server is unavailable, 6 cancelled, 130 interrupted."""

P = ParamSpec("P")


def run_reported(command: Callable[P, int | None], *args: P.args, **kwargs: P.kwargs) -> int:
    """Return the exit status of `command`; an error that users can mend is one sentence."""
    session = getattr(kwargs.get("context"), "obj", None)
    try:
        return command(*args, **kwargs) or OK
    except CursorExpiredError as exc:
        # The sentence has the cursors.
        print_error(f"{without_pointer(str(exc))}. The option is --cursor.")
        return SIGNALS_LOST
    except ServerUnavailableError as exc:
        print_error(with_way_out(str(exc), exc, session))
        return UNAVAILABLE
    except RefusedError as exc:
        print_error(with_way_out(without_pointer(str(exc)), exc, session))
        return REFUSED
    except TimeoutError as exc:
        print_error(str(exc))
        return EXPIRED
    except BrokenPipeError:
        # The reader has enough, such as `head`; Python would complain of it again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED
    except (PurgatoryError, ImportError, OSError, ValueError) as exc:
        print_error(without_pointer(str(exc)))
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
