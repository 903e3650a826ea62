"""The fixtures for users, in a suite of theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.pages.blocks import ROOT, blocks

PAGE = ROOT / "docs/how-to/test-your-code.md"


def test_a_suite_of_a_user(tmp_path: Path) -> None:
    """The one that the how-to shows, with warnings as errors."""
    [suite] = [block.text for block in blocks(PAGE) if "pytest_plugins" in block.text]
    (tmp_path / "test_orders.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    result = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 passed" in result.stdout, result.stdout + result.stderr
