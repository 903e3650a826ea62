"""The house: which room may import which, and who may import a vendor.

The rules are in `tests/house/rules.py`, as docs/architecture.md states them.
"""

import ast
import importlib
import importlib.util
import subprocess
import sys

from tests.cases import cases
from tests.house.imports import ROOT, cimports, files, imports_of_file, module_name
from tests.house.rules import PUBLIC, ROOMS, VENDORS, violations, violations_of

MAX_TEST_LINES = 600


def test_every_file_keeps_the_rules() -> None:
    """Rooms import what the seven rules allow; vendors are imported in their rooms only."""
    found = [
        sentence
        for path in files()
        for sentence in violations_of(module_name(path), imports_of_file(path))
    ]
    assert not found, "\n" + "\n".join(found)


def test_everything_named_by_the_rules_exists() -> None:
    """No room, and no place of a vendor, is a plan."""
    modules = {module_name(path) for path in files()}
    assert (ROOMS.keys() | PUBLIC | set().union(*VENDORS.values())) - modules == set()


def test_files_of_tests_are_short() -> None:
    """A longer one holds more than its name says."""
    lines = {path: len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py")}
    assert len(lines) > 300
    assert {path for path, count in lines.items() if count > MAX_TEST_LINES} == set()


def test_every_folder_says_what_belongs_there() -> None:
    """In the docstring of its package."""
    for path in (path for path in files() if path.name == "__init__.py"):
        documented = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert len(documented.split()) >= 6, f"{path} does not say what belongs there"


def test_examples_import_names_that_we_promise() -> None:
    """What an example imports from us is in an `__all__`: an example shows no inner part."""
    promised = {
        (module, name)
        for module in PUBLIC
        if importlib.util.find_spec(module)
        for name in importlib.import_module(module).__all__
    }
    used = {
        (item.module, item.name)
        for path in files()
        if path.is_relative_to(ROOT / "examples")
        for item in imports_of_file(path)
        if item.module in PUBLIC and item.name
    }
    assert used - promised == set()


@cases(
    "importer, source, complaint",
    [
        ("purgatory.timer.wheel", "import asyncio", "no event loop"),
        ("purgatory.timer.wheel", "from time import monotonic", "purgatory.timer.clock"),
        ("purgatory.operations.x", "if TYPE_CHECKING:\n    import fastapi", "only for"),
        ("purgatory.operations.x", "import importlib\nimportlib.import_module('redis')", "only"),
        ("purgatory.operations.x", "__import__('redis')", "only for"),
        ("purgatory.operations.x", "from ..jobs import X", "core imports nothing else"),
        ("purgatory.signals.memory", "import purgatory.signals.redis", "core imports nothing"),
        ("purgatory.signals.redis", "from purgatory.jobs import Job", "redis imports core only"),
        ("purgatory.fastapi.router", "import purgatory.pipeline", "web imports core, jobs"),
        ("purgatory.purgatory", "import orjson", "name this vendor"),
        ("examples.join_group.main", "from purgatory import limits", "public names only"),
        ("examples.join_group.main", "from purgatory.fastapi.router import X", "nothing deeper"),
        ("examples.join_group.main", "from purgatory import _secret", "public names only"),
        ("examples.join_group.main", "import examples.kafka_broker.log", "stands alone"),
    ],
)
def test_what_breaks_a_rule_is_refused(importer: str, source: str, complaint: str) -> None:
    """The checker finds what it is for, and says which rule it breaks."""
    assert any(complaint in sentence for sentence in violations(importer, source))


_WITHOUT_VENDORS = """
import sys

class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {vendors!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Refusal())
import {module}
"""


def _import_without_vendors(module: str) -> subprocess.CompletedProcess[str]:
    vendors = sorted(VENDORS.keys() - sys.stdlib_module_names)
    script = _WITHOUT_VENDORS.format(vendors=vendors, module=module)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_core_imports_without_any_vendor() -> None:
    """`import purgatory` works where nothing but Python is installed."""
    result = _import_without_vendors("purgatory")
    assert result.returncode == 0, result.stderr


def test_declarations_of_cython_count() -> None:
    """A cimport is an import."""
    source = "from purgatory.timer.task cimport TimerTask, Other\ncimport purgatory.jobs\n"
    assert [(item.line, item.path) for item in cimports(source)] == [
        (1, "purgatory.timer.task"),
        (2, "purgatory.jobs"),
    ]
    [sentence] = violations_of("purgatory.timer.wheel", list(cimports(source))[1:])
    assert "core imports nothing else of ours" in sentence


@cases("vendor", ["anyio", "fastapi", "pydantic", "starlette"])
def test_vendors_are_blocked_in_the_test_above(vendor: str) -> None:
    """The test before this one can fail."""
    result = _import_without_vendors(vendor)
    assert result.returncode == 1
    assert f"{vendor} is blocked" in result.stderr
