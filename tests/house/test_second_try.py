"""The second try of .ci/run, with suites of a few tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_RUN = (_ROOT / ".ci" / "run").read_text()
_TESTED = _RUN[_RUN.index("tested() {") : _RUN.index("# Beside the tests")]

_MAKEFILE = f"""suite:
\t@{sys.executable} -m pytest -q --rootdir=. $(ARGS)
"""
_ONCE = """
import pathlib

def is_first(name):
    is_first = not pathlib.Path(name).exists()
    pathlib.Path(name).touch()
    return is_first
"""
_ALWAYS_FAILS = "def test_b(): assert 0\n"
_FAILS_ONCE = "from once import is_first\ndef test_a(): assert not is_first('a')\n"
_UNREADABLE_ONCE = "from once import is_first\nassert not is_first('c')\ndef test_c(): pass\n"
_BREAKS_OFF_ONCE = """from once import is_first
def test_d():
    if is_first('d'): raise KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("suites", "is_passed"),
    [
        ({"a": "def test_a(): pass\n"}, True),
        ({"a": _FAILS_ONCE}, True),
        ({"a": _FAILS_ONCE, "b": _ALWAYS_FAILS}, False),
        ({"b": _ALWAYS_FAILS, "c": _UNREADABLE_ONCE}, False),
        ({"a": _FAILS_ONCE, "d": _BREAKS_OFF_ONCE, "e": _ALWAYS_FAILS}, False),
    ],
    ids=["passes", "once", "always", "unread", "broken-off"],
)
def test_what_passes_has_run(tmp_path: Path, suites: dict[str, str], *, is_passed: bool) -> None:
    """Few tests that failed may pass alone; what hides that others never ran may not."""
    (tmp_path / "Makefile").write_text(_MAKEFILE)
    (tmp_path / "once.py").write_text(_ONCE)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_sessionfinish\n")
    for name, text in suites.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{_TESTED}\ntested suite || exit 3"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(_ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == (0 if is_passed else 3), ended.stdout + ended.stderr
