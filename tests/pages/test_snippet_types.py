"""Each snippet of Python in README and docs is correct for the type checkers of its readers.

And these find what is wrong with a payload, and nothing else: see typed_handlers.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from tests.event_source.node import NODE, NODE_MODULES
from tests.nightly import NIGHTLY
from tests.pages.blocks import DOCS, PAGES, ROOT, blocks
from tests.pages.preludes import GIVEN, PRELUDES

PYRIGHT = NODE_MODULES / "pyright" / "index.js"


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a package for each page: its files, and its other blocks in order."""
    folder = tmp_path_factory.mktemp("snippets")
    for page in [ROOT / "README.md", *PAGES]:
        name = str(page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT))
        package = folder / ("page_" + name.removesuffix(".md").replace("/", "_").replace("-", "_"))
        package.mkdir()
        given, parts = [GIVEN.get(name, "")], []
        for block in blocks(page):
            if block.language != "python" or block.reason is not None:
                continue
            if block.file is not None:
                (package / block.file).write_text(block.text)
                continue
            for beginning, prelude in PRELUDES.get(name, {}).items():
                if block.text.startswith(beginning) and "await" not in prelude:
                    given.append(prelude)
            parts.append(block.text)
        # In a function, since snippets await.
        body = indent("\n".join(parts), "    ")
        given_text = "\n".join(given)
        (package / "snippets.py").write_text(
            f"{given_text}\nasync def page() -> None:\n    ...\n{body}"
        )
    shutil.copy(Path(__file__).with_name("typed_handlers.py"), folder)
    return folder


@NIGHTLY  # it checks the whole package again; by day, pyright's finding is enough
def test_mypy_accepts_them(snippets: Path) -> None:
    """In its strict mode. A page may define a name again."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--explicit-package-bases",
    ]
    command += [
        "--disable-error-code=no-redef",
        "--disable-error-code=import-untyped",
        "--cache-dir=.mypy_cache/snippets",
        str(snippets),
    ]
    environment = os.environ | {"MYPYPATH": str(snippets)}
    checked = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.skipif(
    not PYRIGHT.exists() and "CI" not in os.environ,
    reason="needs npm's pyright: `make test` has it",
)
def test_pyright_accepts_them(snippets: Path) -> None:
    """In its standard mode, which is what editors show."""
    settings = {
        "extraPaths": [str(ROOT)],
        "reportRedeclaration": False,
        "typeCheckingMode": "standard",
    }
    (snippets / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [str(NODE), str(PYRIGHT), "--pythonpath", sys.executable, "--project", str(snippets)]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
