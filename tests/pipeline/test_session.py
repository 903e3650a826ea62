"""The Spark session: what its workers run, and what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

import purgatory
from purgatory.pipeline.spark.session import error_message
from tests.nightly import NIGHTLY

_SCRIPT = """
import purgatory
from purgatory.pipeline import spark_session

def found_by_worker(_):
    import purgatory

    return purgatory.__file__

spark = spark_session("path", master="local[1]")
found = spark.sparkContext.parallelize([0], 1).map(found_by_worker).first()
spark.stop()
print(purgatory.__file__)
print(found)
"""


@NIGHTLY  # a Spark of its own, for one option
@pytest.mark.usefixtures("no_server")
def test_the_workers_run_the_same_purgatory_as_the_driver(tmp_path: Path) -> None:
    """A compiled core that PYTHONPATH names, though there are sources in the current folder."""
    (tmp_path / "purgatory").mkdir()
    (tmp_path / "purgatory" / "__init__.py").write_text("raise ImportError('not this one')\n")
    ours = purgatory.__file__
    done = subprocess.run(
        [sys.executable, "-P", "-c", _SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(ours).parent.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines() == [ours, ours], done.stderr
    # Nothing in the way of what a command says.
    assert done.stderr == ""


def test_a_server_that_was_restarted_is_named() -> None:
    """In words, rather than as a handle that it does not know."""
    said = "[INVALID_HANDLE.SESSION_NOT_FOUND] The handle 1-2 is invalid. Session not found."
    assert error_message(PySparkException(said)).startswith(
        "the Spark Connect server was restarted, or is gone"
    )
    assert "restarted" not in error_message(PySparkException("[TABLE_NOT_FOUND] x"))
