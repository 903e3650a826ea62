"""Runs of pytest in forks of a process that has imported what the tests import."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

# The same each time, up to a failure. (pytest would rewrite the assertions of what is imported.)
OPTIONS = (
    "-x",
    "-q",
    "--hypothesis-seed=0",
    *("-p", "no:cacheprovider"),
    *("-p", "no:xdist"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)

# Faulty code may allocate without end: it then fails, instead of taking the machine's memory.
MAX_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the tests passed, all of them and in time, and what pytest printed."""

    is_passed: bool
    is_timeout: bool
    output: str


def import_all(names: Iterable[str]) -> None:
    """Import modules for all forks; those that are not installed are left out."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def run_pytest(paths: Iterable[str], timeout: float, *plugins: object) -> Outcome:
    """Run tests of the project in the working directory, in a fork with its own process group.

    What they start ends with them.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        child = os.fork()
        if not child:
            _run_and_exit([*OPTIONS, *paths], plugins, output.fileno())
        status = _exit_status(child, timeout)
        _kill_group(child)
        output.seek(0)
        return Outcome(status == 0, status is None, output.read())


def _run_and_exit(arguments: list[str], plugins: tuple[object, ...], output: int) -> NoReturn:
    status = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output, stream.fileno())
        _forget_project()
        status = pytest.main(arguments, plugins=list(plugins))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status)


def _exit_status(child: int, timeout: float) -> int | None:
    """Wait for a child process; kill it and return None if it takes longer."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _forget_project() -> None:
    # What was imported so far of tests, and maybe of the package, is of the original.
    for name in [name for name in sys.modules if name.partition(".")[0] in ("purgatory", "tests")]:
        del sys.modules[name]
    root = Path(__file__).parents[2]
    sys.path[:] = [str(Path.cwd())] + [
        path for path in sys.path if path and Path(path).resolve() != root
    ]
    # The package asks whether its process is a worker of a server, as a process of a pool may be.
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined] # private


def _kill_group(group: int) -> None:
    # Its number is not given to another process while there is one in the group.
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
