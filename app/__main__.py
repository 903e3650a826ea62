"""`python -m app`: the service on a port. `python -m app token SCOPE ...`: a new token."""

from __future__ import annotations

import gc
import logging.config
import sys

import uvicorn
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.files import raise_file_limit, shortage
from app.journal import JournalUnavailableError
from app.log_lines import log_config
from app.main import create_app
from app.settings import Settings
from purgatory.fastapi import BearerTokens, new_token
from purgatory.uvicorn import ParkingProtocol

logger = logging.getLogger("purgatory.app")

USAGE = """\
python -m app                  serve; settings come from the environment: docs/operating.md
python -m app token SCOPE ...  make a token, and the line of it for the tokens file"""

# Fewer parked requests than this are hardly what anybody starts the service for.
FEW_FILES = 4096


def main() -> int:
    """Run until the process is told to stop; return the exit status."""
    if sys.argv[1:2] == ["token"] and not {"-h", "--help"} & set(sys.argv):
        return _print_token(sys.argv[2:])
    if sys.argv[1:]:
        print(USAGE, file=sys.stdout if {"-h", "--help"} & set(sys.argv) else sys.stderr)
        return 0 if {"-h", "--help"} & set(sys.argv) else 2
    try:
        settings = Settings()
        logging.config.dictConfig(log_config(settings.log_level))
        app = create_app(settings)
    except ValidationError as exc:
        for error in exc.errors():
            print(_sentence(error), file=sys.stderr)
        return 2
    except (JournalUnavailableError, ValueError) as exc:
        print(exc, file=sys.stderr)
        return 2
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        # Done already, so that what is said before the server starts is said in the same way.
        log_config=None,
        log_level=settings.log_level,
        access_log=settings.access_log,
        timeout_keep_alive=settings.keep_alive,
        forwarded_allow_ips=settings.trusted_proxies,
        # Parks without a task for each request; the rest of the application does not notice.
        http=ParkingProtocol,
    )
    _check_files(settings)
    _spare_the_collector()
    address = settings.address
    print(f"Purgatory on {address} -- API and a place to try it: {address}/docs", flush=True)
    try:
        uvicorn.Server(config).run()
    except KeyboardInterrupt:
        # uvicorn has shut down in good order, and only says once more that it was told to.
        print("Purgatory has stopped.", flush=True)
    return 0


def _sentence(error: ErrorDetails) -> str:
    """Say which variable is wrong, and how; never what a secret is."""
    if not error["loc"]:
        return error["msg"].removeprefix("Value error, ")
    name, *within = (str(part) for part in error["loc"])
    name = name.upper()
    if name in {"HOST", "PORT"}:
        return f"{name} is {error['input']!r}: {error['msg']}"
    if name == "TOKENS":
        return f"PURGATORY_TOKENS: {error['msg']}"
    field = Settings.model_fields.get(name.lower())
    if field is not None and "Secret" in str(field.annotation):
        if error["type"] == "too_short":
            return f"PURGATORY_{name} is too short: give {error['ctx']['min_length']} characters"
        return f"PURGATORY_{name}: {error['msg']}"
    place = "".join(f", {part!r}," for part in within)
    said = error["msg"].removeprefix("Value error, ")
    return f"PURGATORY_{name}{place} is {error['input']!r}: {said}"


def _print_token(scopes: list[str]) -> int:
    token, entry = new_token()
    try:
        BearerTokens([(entry, " ".join(scopes))])
    except ValueError as exc:
        print(exc, file=sys.stderr)
        return 2
    print(f"Give this to who asks:              {token}")
    print(f"Put this line into the tokens file: {entry} {' '.join(scopes)}")
    return 0


def _check_files(settings: Settings) -> None:
    files = raise_file_limit()
    # The default bound is meant to be out of the way: it is no promise, unless somebody asked.
    is_asked_for = "max_parked" in settings.model_fields_set
    wanted = settings.max_parked if is_asked_for else FEW_FILES
    if message := shortage(files, wanted):
        logger.warning(message, extra={"action": "few-files"})


def _spare_the_collector() -> None:
    # Parked requests are many objects that live long: scanning them again and again is half of what
    # parking costs. What is there now is there for good; look at the rest less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


if __name__ == "__main__":
    sys.exit(main())
