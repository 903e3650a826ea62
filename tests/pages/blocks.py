"""The code blocks of the pages, and running them as a reader would."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from asyncio import Runner
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any

from tests.free_port import free_port
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_FILE = re.compile(r"# ([a-z]\w*\.py)\n")
_PORT = "8000"
_SETTLED = Path(__file__).parent / "settled.py"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and why it is not run, if it is not."""

    line: int
    language: str
    text: str
    reason: str | None

    @property
    def file(self) -> str | None:
        """The file that a reader is asked to save it as: a comment in its first line."""
        named = _FILE.match(self.text)
        return named[1] if named else None


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            text.count("\n", 0, match.start("text")),
            match["language"],
            match["text"],
            match["reason"],
        )
        for match in _FENCE.finditer(text)
    ]


def run_python(page: Path, preludes: dict[str, str]) -> None:
    """Run the Python blocks of a page in order, in one namespace.

    What `preludes` has for the beginning of a block is run before it, and `end()` at the end.
    Blocks that are saved as files are run by the shell blocks. `await` may be at the top level.
    """
    names: dict[str, Any] = {"__name__": page.stem}
    with Runner() as runner:
        for block in blocks(page):
            if block.language == "python" and block.file is None and block.reason is None:
                for beginning, prelude in preludes.items():
                    if block.text.startswith(beginning):
                        _execute(runner, prelude, "prelude", names)
                # Lines as in the page, for tracebacks.
                _execute(runner, "\n" * block.line + block.text, str(page), names)
        if "end" in names:
            runner.run(names["end"]())


def _execute(runner: Runner, source: str, name: str, names: dict[str, Any]) -> None:
    code = compile(source, name, "exec", flags=PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        runner.run(FunctionType(code, names)())
    else:
        exec(code, names)


def run_shell(page: Path, folder: Path) -> list[tuple[str, str]]:
    """Run the shell blocks of a page in one shell, in `folder` with its files.

    Returns what each block that a block of text follows printed, and that text. Port 8000 becomes a
    free one.
    """
    parts = blocks(page)
    port = str(free_port())
    runs = [block for block in parts if block.language == "bash" and block.reason is None]
    script = "\n".join(
        f"exec > {number}.out\n{patient(_ported(block.text, port), port)}"
        for number, block in enumerate(runs)
    )
    for block in parts:
        if block.file is not None:
            (folder / block.file).write_text(_ported(block.text, port))
    _run(script, folder)
    expected = {
        before: after.text
        for before, after in pairwise(parts)
        if before in runs and after.language == "text"
    }
    return [
        ((folder / f"{number}.out").read_text(), expected[block])
        for number, block in enumerate(runs)
        if block in expected
    ]


def _ported(text: str, port: str) -> str:
    return re.sub(rf"(localhost:|--port |PORT=){_PORT}\b", rf"\g<1>{port}", text)


def patient(script: str, port: str) -> str:
    """Return a script that waits for its servers and requests as long as a busy machine takes."""
    settled = shlex.join([sys.executable, "-I", "-S", str(_SETTLED), port])
    script = re.sub(r"(?m)(^|& )sleep \d$", lambda found: found[1] + settled, script)
    return script.replace("--retry 20 ", f"--retry {PATIENCE_S:.0f} ")


def _run(script: str, folder: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    with (folder / "errors").open("w+") as errors:
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status = shell.wait(2 * PATIENCE_S)
        finally:
            # With the servers that it started, if they have not all ended.
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        errors.seek(0)
        assert status == 0, errors.read()
