"""Copies of the project in which mutants are made and tested, one mutant at a time in each."""

from __future__ import annotations

import contextlib
import difflib
import gc
import hashlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.mutating import mutate_code

import tests.mutation.operators  # noqa: F401 # Cosmic Ray looks ours up by name, in each process
from tests.mutation.forked_pytest import Outcome, import_all, run_pytest
from tests.mutation.mutants import Mutant
from tests.mutation.recorder import RecordedTest, Recorder, read_tests
from tests.mutation.rooms import ROOT, MutationSettings
from tests.mutation.stages import Selection, Stage

# A busy machine may need that many times as long as when the tests were recorded.
PATIENCE = 3

RECORDS = ".cache/mutation"

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant; `diff` shows it."""

    mutant: Mutant
    is_killed: bool
    is_timeout: bool
    """The tests took too long: it counts as killed, unless the machine was too busy."""
    seconds: float
    diff: str


def enter_copy(settings: MutationSettings, parent: str) -> None:
    """Copy the project into a folder of this process, go there, and import what tests need."""
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
    import_all(settings.preloaded)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all these objects


def record(path: str) -> tuple[str, float, list[RecordedTest], str]:
    """Run tests on the code as it is: the path, seconds, the tests, and the output if they fail.

    Unless they passed before: what was recorded then is kept.
    """
    started = time.monotonic()
    kept = ROOT / RECORDS / f"{_digest(path)}.json"
    if not kept.exists():
        result = Path.cwd().with_suffix(".json")
        outcome = run_pytest([path], 3600, Recorder(Path.cwd(), result))
        if not outcome.is_passed:
            output = "timeout" if outcome.is_timeout else outcome.output or "no output"
            return path, time.monotonic() - started, [], output
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(result, kept)
    found = read_tests(kept)
    return path, time.monotonic() - started, found, "" if found else "no tests"


def _digest(tests: str) -> str:
    """Return what changes with the code and with these tests, but not with other files of tests."""
    digest = hashlib.sha256(tests.encode())
    for path in sorted(Path().rglob("*.py")):
        if path.match("test_*.py") and not path.is_relative_to(tests):
            continue
        digest.update(f"{path}".encode() + path.read_bytes())
    return digest.hexdigest()


def run_mutant(mutant: Mutant, stages: list[Stage], timeout: float) -> Verdict | None:
    """Run the stages on a mutant up to a failure; None if it is the same code."""
    started = time.monotonic()
    module = mutant.spec.module_path
    operator = cosmic_ray.plugins.get_operator(mutant.spec.operator_name)
    source = module.read_text()
    mutated = mutate_code(source, operator(**mutant.spec.operator_args), mutant.spec.occurrence)
    if mutated is None or mutated == source:
        return None
    with _written(module, mutated):
        outcomes = (_run(stage, timeout) for stage in stages)
        failed = next((outcome for outcome in outcomes if not outcome.is_passed), None)
    lines = difflib.unified_diff(source.splitlines(), mutated.splitlines(), lineterm="")
    diff = "\n".join(itertools.islice(lines, 2, None))
    is_killed, is_timeout = failed is not None, failed is not None and failed.is_timeout
    return Verdict(mutant, is_killed, is_timeout, time.monotonic() - started, diff)


def _run(stage: Stage, timeout: float) -> Outcome:
    selection = Selection(stage.nodeids, stage.is_rest)
    return run_pytest(stage.paths, timeout + PATIENCE * stage.seconds, selection)


@contextlib.contextmanager
def _written(module: Path, mutated: str) -> Iterator[None]:
    """Have other code in a module.

    Each time with another time in seconds, by which the interpreter sees that its compiled form is
    not of this source.
    """
    source = module.read_bytes()
    before = module.stat().st_mtime
    module.write_text(mutated)
    after = before + next(_numbers)
    os.utime(module, (after, after))
    try:
        yield
    finally:
        module.write_bytes(source)
        os.utime(module, (before, before))
