"""`python -m app`: the service on a port."""

from __future__ import annotations

import gc
import logging
import sys

import uvicorn
from pydantic import ValidationError
from uvicorn.logging import DefaultFormatter

from app.files import raise_file_limit, shortage
from app.main import create_app
from app.settings import Settings

logger = logging.getLogger("purgatory.app")

# Fewer parked requests than this are hardly what anybody starts the service for.
FEW_FILES = 4096


def main() -> int:
    """Run until the process is told to stop; return the exit status."""
    try:
        settings = Settings()
    except ValidationError as exc:
        for error in exc.errors():
            name = "_".join(str(part) for part in error["loc"]).upper() or "settings"
            variable = name if name in {"HOST", "PORT"} else f"PURGATORY_{name}"
            print(f"{variable} is {error['input']!r}: {error['msg']}", file=sys.stderr)
        return 2
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level,
        access_log=settings.access_log,
        timeout_keep_alive=settings.keep_alive,
    )
    _log_like_uvicorn(settings.log_level)
    _check_files(settings)
    _spare_the_collector()
    address = f"http://{settings.host}:{settings.port}"
    print(f"Purgatory on {address} -- API and a place to try it: {address}/docs", flush=True)
    uvicorn.Server(config).run()
    return 0


def _log_like_uvicorn(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(DefaultFormatter("%(levelprefix)s %(message)s"))
    logging.getLogger("purgatory").addHandler(handler)
    logging.getLogger("purgatory").setLevel(level.upper())


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
