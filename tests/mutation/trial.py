"""Copies of the project in which mutants are made and tested, one mutant at a time in each."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import TestOutcome, WorkerOutcome

import tests.mutation.operators  # noqa: F401 # Cosmic Ray looks ours up by name, in each process
from tests.mutation.mutants import Mutant
from tests.mutation.rooms import ROOT, MutationSettings, Room


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant; `diff` shows it."""

    mutant: Mutant
    is_killed: bool
    seconds: float
    diff: str


def test_command(room: Room) -> str:
    """Return the command that runs the tests of a room: the same each time, up to a failure."""
    options = "-x -q -p no:cacheprovider -p no:xdist --hypothesis-seed=0"
    return f"{shlex.quote(sys.executable)} -m pytest {options} {shlex.join(room.tests)}"


def enter_copy(settings: MutationSettings, parent: str) -> None:
    """Copy the project into a folder of this process, and go there."""
    folder = Path(parent) / str(os.getpid())
    for name in settings.copied:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy(source, folder / name)
    os.chdir(folder)
    # Not by way of an installed copy, and not compiled.
    os.environ.pop("PYTHONPATH", None)


def run_unchanged(room: Room) -> tuple[Room, float, str]:
    """Run the tests of a room on the code as it is: seconds, and the output if they fail."""
    started = time.monotonic()
    outcome, output = run_tests(test_command(room), 3600)
    is_good = outcome == TestOutcome.SURVIVED
    return room, time.monotonic() - started, "" if is_good else output or "no output"


def run_mutant(mutant: Mutant, timeout: float) -> Verdict | None:
    """Run the tests on a mutant; None if no fault came of it."""
    started = time.monotonic()
    result = mutate_and_test([mutant.spec], test_command(mutant.room), timeout)
    if result.worker_outcome != WorkerOutcome.NORMAL or not result.diff:
        return None
    is_killed = result.test_outcome != TestOutcome.SURVIVED
    return Verdict(mutant, is_killed, time.monotonic() - started, result.diff)
