"""What type checkers say of handlers and their payloads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.event_source.node import NODE, NODE_MODULES

ROOT = Path(__file__).parents[3]
PYRIGHT = NODE_MODULES / "pyright" / "index.js"

# Lines that end in `# wrong` are refused, and no others.
CODE = """
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from pydantic import BaseModel

from purgatory import Purgatory
from purgatory.jobs import Again, JobContext, JobHandle, RetryPolicy

purgatory = Purgatory()


@dataclass
class CancelOrder:
    order: int


class Charge(BaseModel):
    amount: int


class Note(TypedDict):
    text: str


@purgatory.handler("cancel-order", max_attempts=3, timeout=timedelta(seconds=30))
async def cancel_order(job: JobContext, payload: CancelOrder) -> None: ...


@purgatory.handler(retry=RetryPolicy(first_ms=500), final_errors=(ValueError,))
def charge(job: JobContext, payload: Charge) -> int:
    return payload.amount


@purgatory.handler
async def note(job: JobContext, payload: Note) -> None: ...


@purgatory.handler("sweep")
async def sweep(job: JobContext) -> Again:
    return job.again(delay=timedelta(hours=1))


@purgatory.handler
async def remind(job: JobContext, days: int = 7) -> None: ...


@purgatory.handler("x", max_atempts=3)  # wrong
async def misspelt(job: JobContext) -> None: ...


@purgatory.handler("y")  # wrong
async def of_nothing() -> None: ...


async def use(job: JobContext) -> None:
    handle: JobHandle = await cancel_order.defer(CancelOrder(42), delay=timedelta(minutes=15))
    await cancel_order.defer("42", delay=1)  # wrong
    await cancel_order.defer(delay=1)  # wrong
    await cancel_order.defer(CancelOrder(42), delay="soon")  # wrong
    await cancel_order.defer(CancelOrder(42), when=1)  # wrong
    await charge.defer(Charge(amount=1), delay=1, keys=["order:42"], on_fire="cancel")
    await charge.defer(CancelOrder(42), delay=1)  # wrong
    await note.defer({"text": "hello"}, delay=0)
    await note.defer({"txt": "hello"}, delay=0)  # wrong
    await sweep.defer(delay=0)
    await sweep.defer(1, delay=0)  # wrong
    await remind.defer(delay=0)
    await remind.defer(3, delay=0)
    await remind.defer("3", delay=0)  # wrong
    await purgatory.defer("cancel-order", {"order": 42}, delay=1)
    amount: int = charge(job, Charge(amount=1))
    again: Again = await sweep(job)
    print(handle, amount, again)
"""
WRONG = {at for at, line in enumerate(CODE.splitlines(), 1) if line.endswith("# wrong")}


def test_mypy_refuses_wrong_payloads_and_nothing_else(tmp_path: Path) -> None:
    """In its strict mode."""
    (tmp_path / "orders.py").write_text(CODE)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-color-output"]
    # What the package itself has is checked with its own settings.
    command += ["--follow-imports=silent", "--explicit-package-bases"]
    command += [f"--cache-dir={ROOT / '.mypy_cache' / 'handlers'}", str(tmp_path / "orders.py")]
    environment = os.environ | {"MYPYPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = re.findall(r"orders\.py:(\d+): error", found.stdout)
    assert {int(line) for line in lines} == WRONG, found.stdout + found.stderr


@pytest.mark.skipif(
    not PYRIGHT.exists() and "CI" not in os.environ,
    reason="needs npm's pyright: `make test` has it",
)
def test_pyright_refuses_the_same(tmp_path: Path) -> None:
    """In its standard mode, which is what editors show."""
    (tmp_path / "orders.py").write_text(CODE)
    settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [str(NODE), str(PYRIGHT), "--outputjson", "--pythonpath", sys.executable]
    found = subprocess.run([*command, "--project", str(tmp_path)], capture_output=True, text=True)
    errors = [
        each
        for each in json.loads(found.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    ]
    assert {each["range"]["start"]["line"] + 1 for each in errors} == WRONG, found.stdout
