"""The exit statuses of commands, and the errors that end one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final, ParamSpec

from purgatory.cli.output import print_error, without_pointer
from purgatory.cli.way_out import with_way_out
from purgatory.client import RefusedError, ServerUnavailableError
from purgatory.errors import CursorExpiredError, PurgatoryError

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
