"""The number of worker processes, from the command line and the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from purgatory.errors import SeveralWorkersError

_SERVERS = ("uvicorn", "gunicorn", "hypercorn", "granian", "fastapi")
_OPTIONS = ("--workers", "-w")


def check_workers(
    argv: Sequence[str], environ: Mapping[str, str], *, allow_separate_workers: bool
) -> None:
    """Raise SeveralWorkersError if several workers would each have their own signals.

    A fire in one worker would not wake a request that is parked in another. The number is read as
    uvicorn, gunicorn, hypercorn, granian and FastAPI's command line read it.
    """
    count = declared_workers(argv, environ)
    if count > 1 and not allow_separate_workers:
        raise SeveralWorkersError(
            f"{count} workers would each keep signals in their own memory: a fire in one would not "
            "wake a request that is parked in another. Run one worker, or pass "
            "allow_separate_workers=True if each worker has its own clients and keys"
        )


def declared_workers(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Return the number of workers that a command line or the environment asks for, or 1."""
    # Another program's -w may mean anything.
    is_server = bool(argv) and any(server in argv[0] for server in _SERVERS)
    for position, argument in enumerate(argv if is_server else ()):
        name, equals, value = argument.partition("=")
        if name in _OPTIONS:
            following = argv[position + 1] if position + 1 < len(argv) else ""
            return _count(value if equals else following)
        if argument.startswith("-w") and argument[2:].isdigit():
            return _count(argument[2:])
    # uvicorn and gunicorn read WEB_CONCURRENCY; uvicorn and granian a variable for each option.
    names = [f"{server.upper()}_WORKERS" for server in _SERVERS if argv and server in argv[0]]
    return _count(next(filter(None, map(environ.get, [*names, "WEB_CONCURRENCY"])), ""))


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 1
