"""What a wheel has where there is a C compiler: the form that `make test-compiled` runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

import purgatory
from purgatory import timer

ROOT = Path(__file__).parent.parent
# A wheel that pip has built and unpacked: building another one takes as long as a hundred tests.
INSTALLED = Path(purgatory.__file__).parent.parent
SUFFIXES = {".so", ".pyd"}

pytestmark = pytest.mark.skipif(not timer.compiled, reason="of the compiled form only")


@pytest.fixture
def modules() -> list[Path]:
    """The extension modules of the wheel."""
    files = (INSTALLED / "purgatory").rglob("*")
    return [path.relative_to(INSTALLED) for path in files if path.suffix in SUFFIXES]


def test_the_wheel_is_for_this_python_and_platform() -> None:
    """Not for any: pip would install it where it cannot be loaded."""
    [about] = INSTALLED.glob("fastapi_purgatory-*.dist-info")
    wheel = (about / "WHEEL").read_text()
    assert "Root-Is-Purelib: false" in wheel
    assert "-none-any" not in wheel


def test_all_that_is_declared_is_compiled(modules: list[Path]) -> None:
    """Each `.pxd` beside a module says how to compile it."""
    declared = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in (ROOT / "purgatory").rglob("*.pxd")
        if path.with_suffix(".py").exists()
    }
    assert {path.as_posix().partition(".")[0] for path in modules} == declared


def test_what_is_compiled_is_imported() -> None:
    """And has the names of the plain form."""
    assert Path(timer.__file__).is_relative_to(INSTALLED)
    assert timer.TimerTask.__module__ == "purgatory.timer.task"


def test_there_are_no_debug_symbols(modules: list[Path]) -> None:
    """They would be five sixths of what is installed."""
    assert [path for path in modules if b".debug_info" in (INSTALLED / path).read_bytes()] == []
