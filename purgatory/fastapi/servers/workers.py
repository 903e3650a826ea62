"""The number of worker processes, from the server that runs in this one."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from purgatory.errors import SeveralWorkersError


def check_workers(
    argv: Sequence[str], environ: Mapping[str, str], *, allow_separate_workers: bool
) -> None:
    """Raise SeveralWorkersError if several workers would each have their own signals.

    A fire in one worker would not wake a request that is parked in another. Call it where the
    server starts the application.
    """
    count = running_workers(sys._getframe(), argv, environ)
    if count > 1 and not allow_separate_workers:
        raise SeveralWorkersError(
            f"{count} workers would each keep signals in their own memory, where a fire wakes only "
            "the requests that are parked in the same worker: share them, "
            'Purgatory(signals=RedisSignals("redis://localhost:6379")), or run one worker, or pass '
            "allow_separate_workers=True if each worker has its own clients and keys "
            "(docs/how-to/several-workers.md)"
        )


def running_workers(
    frame: FrameType | None, argv: Sequence[str], environ: Mapping[str, str]
) -> int:
    """Return how many workers the server whose code calls `frame` has, or 1.

    Servers read the number from options, variables, files and arguments of functions, and tell the
    application nothing: it is in the objects of the code that runs the event loop.
    """
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] in SERVERS:
            for config in _configurations(module, frame.f_locals):
                count = getattr(config, "workers", None)
                if isinstance(count, int):
                    return max(1, count)
        frame = frame.f_back
    return _granian_workers(argv, environ)


def is_uvicorn_worker(frame: FrameType | None) -> bool:
    """Return True iff the code that calls `frame` runs in a process that uvicorn has started."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "uvicorn._subprocess":
            return True
        frame = frame.f_back
    return False


def is_later_uvicorn_worker(frame: FrameType | None) -> bool:
    """Return True iff uvicorn has started this process at its start, and another one before it."""
    _, _, number = multiprocessing.current_process().name.rpartition("-")
    if not number.isdecimal() or not is_uvicorn_worker(frame):
        return False
    # One that replaces another has a number beyond.
    return 1 < int(number) <= running_workers(frame, sys.argv, os.environ)


def uvicorn_server(frame: FrameType | None) -> Any:
    """Return the `uvicorn.Server` whose event loop calls `frame`, or None."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "uvicorn.server":
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


SERVERS = frozenset({"uvicorn", "gunicorn", "hypercorn", "granian"})


def _configurations(module: str, names: Mapping[str, Any]) -> Iterator[object]:
    """Yield what may have the number of workers, of a function of a server."""
    if module == "uvicorn._subprocess":
        # Not uvicorn.Server: without a supervisor, it is one process whatever its configuration.
        config = names.get("config")
        # The reloader ignores the number.
        if not getattr(config, "should_reload", False):
            yield config
    elif module == "hypercorn.asyncio.run":
        yield names.get("config")
    elif module.startswith("gunicorn."):
        yield getattr(names.get("self"), "cfg", None)
    elif module == "granian.server.common":
        # A forked worker has the frames of its parent.
        yield names.get("self")


def _granian_workers(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Return the number in granian's command line or variable: its spawned workers lack it."""
    if not argv or "granian" not in argv[0]:
        return 1
    text = environ.get("GRANIAN_WORKERS", "")
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name == "--workers":
            text = value if equals else "".join(argv[position + 1 : position + 2])
    return int(text) if text.isdecimal() else 1
