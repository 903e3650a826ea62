"""`make run` on a fresh machine, with an interpreter that only records what it is asked to do."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

_ROOT = Path(__file__).parents[2]
# Records PYTHONPATH and arguments, and the children of the service; `pip --target FOLDER` makes the
# folder, once it may. Connections to the service are refused until it listens.
_PYTHON = """#!/bin/sh
echo "$PYTHONPATH" $* >> {log}
if [ "$3" = app ]; then
  read -r children < /proc/$$/task/$$/children
  echo "$children" > {log}.children
fi
if [ "$1" = -ISc ] && [ ! -e {listens} ]; then exit 1; fi
while [ "$#" -gt 0 ]; do
  if [ "$1" = --target ]; then while [ ! -e {may_compile} ]; do sleep 0.1; done; mkdir "$2"; fi
  shift
done
"""


class Machine:
    """A virtual environment in which the service is installed, and nothing is compiled."""

    def __init__(self, folder: Path) -> None:
        self.venv, self.log = folder / "venv", folder / "log"
        self.may_compile, self.listens = folder / "may-compile", folder / "listens"
        (self.venv / "bin").mkdir(parents=True)
        python = self.venv / "bin" / "python"
        places = {"may_compile": self.may_compile, "listens": self.listens}
        python.write_text(_PYTHON.format(log=self.log, **places))
        python.chmod(0o755)
        for stamp in (".created", ".run"):
            (self.venv / stamp).touch()

    def run(self, **environment: str) -> str:
        """Return the path of modules that the service starts with."""
        before = len(self.calls())
        environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        command = ["make", "run", f"VENV={self.venv}"]
        subprocess.run(
            command, cwd=_ROOT, env=environ | environment, check=True, timeout=PATIENCE_S
        )
        (path,) = [call.split()[0] for call in self.calls()[before:] if call.endswith("-m app")]
        return path

    def calls(self) -> list[str]:
        """Return what the interpreter was started with."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def compile(self) -> None:
        """Let the service start and the compiler finish, and wait until it has."""
        self.listens.touch()
        self.may_compile.touch()
        _wait_until((self.venv / ".compiled").exists)


def _wait_until(is_met: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_met():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_service_does_not_wait_for_the_compiler(tmp_path: Path) -> None:
    """It starts in plain Python while the core is compiled beside it, for the next start."""
    machine = Machine(tmp_path)
    assert machine.run() == "."
    machine.compile()
    assert machine.run() == f"{machine.venv}/compiled:."


def test_the_compiler_takes_nothing_from_the_start_of_the_service(tmp_path: Path) -> None:
    """It begins once the service accepts connections, which is tried again until it does."""
    machine = Machine(tmp_path)
    machine.run()
    _wait_until(lambda: sum("-ISc" in call for call in machine.calls()) >= 2)
    assert not any("--target" in call for call in machine.calls())
    machine.compile()


def test_the_compiler_is_no_child_of_the_service(tmp_path: Path) -> None:
    """Nothing would collect its exit status: it would stay as a defunct process."""
    machine = Machine(tmp_path)
    machine.run()
    assert machine.log.with_suffix(".children").read_text() == "\n"
    machine.compile()


@pytest.mark.parametrize("value", ["1", "yes"])
def test_one_variable_skips_the_compiler(tmp_path: Path, value: str) -> None:
    """Now, and if there is a compiled core."""
    machine = Machine(tmp_path)
    assert machine.run(PURGATORY_PURE_PYTHON=value) == "."
    assert not any("--target" in call for call in machine.calls())
    machine.run()
    machine.compile()
    assert machine.run(PURGATORY_PURE_PYTHON=value) == "."
