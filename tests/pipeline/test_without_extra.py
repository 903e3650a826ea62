"""Without an extra, the command and the import say which one to install."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.pipeline.rolled import START, write_outcomes

SENTENCE = "purgatory.pipeline needs {}: pip install 'fastapi-purgatory[report]'"


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


@pytest.mark.parametrize("package", ["pyarrow", "duckdb"])
def test_the_command_names_the_extra(tmp_path: Path, package: str) -> None:
    """In one line on stderr, with exit status 1."""
    ended = run_without(tmp_path, package, "-m", "purgatory.pipeline", "report", "--out", "x")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"{SENTENCE.format(package)}\n"


def test_the_import_names_the_extra(tmp_path: Path) -> None:
    """As an ImportError, which an application can catch."""
    ended = run_without(tmp_path, "duckdb", "-c", "import purgatory.pipeline")
    assert ended.returncode == 1
    assert ended.stderr.endswith(f"ImportError: {SENTENCE.format('duckdb')}\n")


def test_a_report_needs_no_spark(tmp_path: Path) -> None:
    """What does need it says so: by the command, and as an ImportError."""
    out = tmp_path / "out"
    at = START + timedelta(seconds=1)
    write_outcomes(out, [{"watched_at": at, "completed_at": at}], as_of=at)
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "pandas.py").write_text("raise ModuleNotFoundError(name='pandas')\n")
    command = ("-m", "purgatory.pipeline")
    for name in ("waits", "advise", "report"):
        ended = run_without(modules, "pyspark", *command, name, "--out", str(out))
        assert ended.returncode == 0, ended.stderr
    assert (out / "report" / "report.html").exists()
    for arguments in (("replay",), ("waits", "--engine", "spark")):
        ended = run_without(modules, "pyspark", *command, *arguments, "--out", str(out))
        assert ended.returncode == 1
        assert "pip install 'fastapi-purgatory[pipeline]'" in ended.stderr.splitlines()[-1]
    ended = run_without(modules, "pyspark", "-c", "from purgatory.pipeline import register")
    assert ended.stderr.endswith(
        "ImportError: purgatory.pipeline.register needs pyspark: "
        "pip install 'fastapi-purgatory[pipeline]'\n"
    )
