"""Without the extra `pipeline`, the command and the import say which extra to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SENTENCE = "purgatory.pipeline needs {}: pip install 'fastapi-purgatory[pipeline]'"


def run_without(folder: Path, package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where `package` cannot be imported."""
    (folder / f"{package}.py").write_text(
        f"raise ModuleNotFoundError('No module named {package}', name={package!r})\n"
    )
    path = os.pathsep.join((str(folder), *filter(None, sys.path)))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("package", ["pyarrow", "pyspark"])
def test_the_command_names_the_extra(tmp_path: Path, package: str) -> None:
    """In one line on stderr, with exit status 1."""
    ended = run_without(tmp_path, package, "-m", "purgatory.pipeline", "report", "--out", "x")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"{SENTENCE.format(package)}\n"


def test_the_import_names_the_extra(tmp_path: Path) -> None:
    """As an ImportError, which an application can catch."""
    ended = run_without(tmp_path, "pyspark", "-c", "import purgatory.pipeline")
    assert ended.returncode == 1
    assert ended.stderr.endswith(f"ImportError: {SENTENCE.format('pyspark')}\n")
