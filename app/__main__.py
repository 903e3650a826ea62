"""The command line of the service: `python -m app`, and `python -m app token SCOPE ...`."""

from __future__ import annotations

import logging.config
import os
import socket
import sys

from fastapi import FastAPI
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.file_limit import raise_file_limit, shortage
from app.journal import JournalUnavailableError
from app.json_log import json_line
from app.log_format import log_config
from app.main import create_app
from app.server import serve
from app.settings import Settings
from app.sockets import AddressError, bind
from purgatory.environment import discard_closed_streams
from purgatory.fastapi import BearerTokens, new_token

logger = logging.getLogger("purgatory.app")

USAGE = """\
python -m app                  run the service; settings: environment, see docs/reference/service.md
python -m app token SCOPE ...  create a token and its line for the tokens file"""

# Warn if fewer requests than this can be parked, unless the settings ask for fewer.
MIN_EXPECTED_PARKED = 4096


def main() -> int:
    """Run the service until it is stopped; return the exit status."""
    discard_closed_streams()
    if sys.argv[1:2] == ["token"] and not {"-h", "--help"} & set(sys.argv):
        return _print_token(sys.argv[2:])
    if sys.argv[1:]:
        print(USAGE, file=sys.stdout if {"-h", "--help"} & set(sys.argv) else sys.stderr)
        return 0 if {"-h", "--help"} & set(sys.argv) else 2
    try:
        settings = Settings()
        logging.config.dictConfig(log_config(settings.log_level, settings.log_format))
        sockets, app = _prepare(settings)
    except ValidationError as exc:
        for error in exc.errors():
            _print_refusal(_message(error))
        return 2
    except (JournalUnavailableError, ValueError) as exc:
        _print_refusal(str(exc))
        return 2
    except AddressError as exc:
        _print_refusal(str(exc))
        return 1
    _check_files(settings)
    return serve(app, settings, sockets)


def _prepare(settings: Settings) -> tuple[list[socket.socket], FastAPI]:
    # Sockets first: nothing else has to be closed if the port is in use.
    sockets = bind(settings.host, settings.port)
    try:
        return sockets, create_app(settings)
    except Exception:
        for listener in sockets:
            listener.close()
        raise


def _print_refusal(message: str) -> None:
    """Print why the service does not start, in the format of the log."""
    # From the environment itself: there may be no settings, as others of them are wrong.
    environment = {name.upper(): value for name, value in os.environ.items()}
    if environment.get("PURGATORY_LOG_FORMAT") == "json":
        message = json_line(message, level="error", action="start-refused")
    print(message, file=sys.stderr)


def _message(error: ErrorDetails) -> str:
    """Return which variable is wrong and why, without the value of a secret."""
    if not error["loc"]:
        return error["msg"].removeprefix("Value error, ")
    name, *within = (str(part) for part in error["loc"])
    name = name.upper()
    if name in {"HOST", "PORT", "WORKERS"}:
        return f"{name} is {error['input']!r}: {error['msg']}"
    if name == "TOKENS":
        return f"PURGATORY_TOKENS: {error['msg']}"
    field = Settings.model_fields.get(name.lower())
    if field is not None and "Secret" in str(field.annotation):
        if error["type"] == "too_short":
            return f"PURGATORY_{name} is too short: give {error['ctx']['min_length']} characters"
        return f"PURGATORY_{name}: {error['msg']}"
    place = "".join(f", {part!r}," for part in within)
    reason = error["msg"].removeprefix("Value error, ")
    return f"PURGATORY_{name}{place} is {error['input']!r}: {reason}"


def _print_token(scopes: list[str]) -> int:
    token, entry = new_token()
    try:
        BearerTokens([(entry, " ".join(scopes))])
    except ValueError as exc:
        print(exc, file=sys.stderr)
        return 2
    print(f"Give this token to the client:      {token}")
    print(f"Add this line to the tokens file:   {entry} {' '.join(scopes)}")
    return 0


def _check_files(settings: Settings) -> None:
    files = raise_file_limit()
    # The default limit is deliberately high; check it only if it was set explicitly.
    is_explicit = "max_parked" in settings.model_fields_set
    wanted = settings.max_parked if is_explicit else MIN_EXPECTED_PARKED
    if message := shortage(files, wanted):
        logger.warning(message, extra={"action": "few-files"})


if __name__ == "__main__":
    sys.exit(main())
