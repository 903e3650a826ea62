"""The short form: committed means deferred and fired, rolled back means neither."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_commit_is_for_both_or_neither(store: str) -> None:
    """Whatever dies around it. In a process of its own, which forks."""
    command = [sys.executable, "-m", "tests.chaos.commits", "--store", store, "--kills", "12"]
    said = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    found = re.search(r"(\d+) transactions, (\d+) of them committed, 0 faults", said.stdout)
    # Some were rolled back, or died before their commit.
    assert found and 0 < int(found[2]) < int(found[1])
