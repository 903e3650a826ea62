"""The house: which module may import which, and who may import a vendor.

The table is in `tests/house/table.py`; imports point down a floor, stay in the room, or go to a
room of the same floor that the table names.
"""

import ast
import importlib
import importlib.util
import subprocess
import sys

import pytest

from tests.house.imports import ROOT, cimports, files, imports_of_file, module_name
from tests.house.picture import used_rooms
from tests.house.rules import circle, is_within, violations, violations_of
from tests.house.table import HOUSE, PUBLIC, USES, VENDORS

# About 15: what a reader takes in at a glance.
MAX_MODULES = 18
MAX_TEST_LINES = 600


def test_every_file_keeps_to_the_house() -> None:
    """Imports point down a floor or stay in the room; vendors are imported in their rooms only."""
    found = [
        sentence
        for path in files()
        for sentence in violations_of(module_name(path), imports_of_file(path))
    ]
    assert not found, "\n" + "\n".join(found)


def test_every_entry_of_the_table_exists() -> None:
    """No room, and no place of a vendor, is a plan."""
    modules = {module_name(path) for path in files()}
    named = HOUSE.keys() | PUBLIC | set().union(*VENDORS.values())
    assert named - modules == set()


def test_files_of_tests_are_short() -> None:
    """A longer one holds more than its name says."""
    lines = {path: len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py")}
    assert len(lines) > 300
    assert {path for path, count in lines.items() if count > MAX_TEST_LINES} == set()


def test_no_circle_between_rooms() -> None:
    """Rooms of a floor that use one another have an order; so have all that are imported."""
    assert circle(USES) == []
    assert circle(used_rooms()) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}}) == ["a", "b", "c", "a"]


def test_rooms_may_use_only_what_they_use() -> None:
    """Each permission of the table is for rooms of one floor, and is needed by an import."""
    floors = {room: floor for floor, room in HOUSE.values()}
    used = used_rooms()
    pairs = {(room, target) for room, targets in USES.items() for target in targets}
    assert {pair for pair in pairs if floors[pair[0]] != floors[pair[1]]} == set()
    assert {pair for pair in pairs if pair[1] not in used[pair[0]]} == set()


def test_every_folder_is_a_room() -> None:
    """A folder with modules is in the table, says what belongs there, and is small."""
    packages = [path for path in files() if path.name == "__init__.py"]
    assert {module_name(path) for path in packages} - HOUSE.keys() == set()
    for path in packages:
        documented = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert len(documented.split()) >= 6, f"{path} does not say what belongs there"
        modules = [other.name for other in path.parent.glob("*.py") if other != path]
        assert len(modules) <= MAX_MODULES or path.is_relative_to(ROOT / "examples"), (
            f"{path.parent} has {len(modules)} modules: give some of them a room of their own"
        )


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


@pytest.mark.parametrize("importer", HOUSE)
def test_imports_go_down_or_stay_in_the_room(importer: str) -> None:
    """Each entry is allowed or refused by its floor and room, and by nothing else."""
    floor, room = HOUSE[importer]
    allowed = {
        target
        for target, (target_floor, target_room) in HOUSE.items()
        if target_floor < floor or target_room in {room, *USES.get(room, ())}
    }
    if importer.startswith("examples"):
        allowed &= PUBLIC | {importer}
    assert {name for name in HOUSE if not violations(importer, f"import {name}")} == allowed


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_vendor_is_refused_outside_its_rooms(vendor: str) -> None:
    """A vendor is refused in every entry that is not named for it, and allowed where it is."""
    allowed = {name for name in HOUSE if is_within(name, VENDORS[vendor])}
    found = {name for name in HOUSE if not violations(name, f"import {vendor}")}
    assert found == allowed
    assert not any(violations(name, f"import {vendor}") for name in VENDORS[vendor])


@pytest.mark.parametrize("importer", HOUSE)
def test_the_event_loop_begins_on_floor_3(importer: str) -> None:
    """Nothing of floors 1 and 2 knows of asyncio."""
    is_allowed = HOUSE[importer][0] >= 3
    assert (violations(importer, "import asyncio.events") == []) == is_allowed


@pytest.mark.parametrize(
    ("importer", "source", "complaint"),
    [
        ("purgatory.timer.wheel", "import asyncio", "not below floor 3"),
        ("purgatory.timer.wheel", "import time", "purgatory.timer.clock"),
        ("purgatory.timer.wheel", "from time import monotonic", "purgatory.timer.clock"),
        ("purgatory.timer.wheel", "import numpy", "standard library only"),
        ("purgatory.timer.wheel", "from purgatory.operations import X", "up from timer"),
        ("purgatory.timer.wheel", "from ..operations import X", "up from timer"),
        ("purgatory.timer.wheel", "from .. import operations", "up from timer"),
        ("purgatory.timer.wheel", "from purgatory import Purgatory", "up from timer"),
        (
            "purgatory.operations.delayed_operation",
            "def f():\n    import asyncio",
            "not below floor 3",
        ),
        (
            "purgatory.operations.delayed_operation",
            "if TYPE_CHECKING:\n    import fastapi",
            "standard library only",
        ),
        (
            "purgatory.operations.delayed_operation",
            "import importlib\nimportlib.import_module('redis')",
            "standard",
        ),
        ("purgatory.operations.delayed_operation", "__import__('redis')", "standard library only"),
        ("purgatory.signals.memory", "import redis", "only for purgatory.jobs.redis"),
        ("purgatory.signals.redis", "from purgatory.jobs import Job", "sideways from signals"),
        (
            "purgatory.event_loop.expiration_reaper",
            "import purgatory.purgatory",
            "sideways from event_loop",
        ),
        ("purgatory.purgatory", "from purgatory import errors, journal", "to journal"),
        ("purgatory.purgatory", "import orjson", "name this vendor"),
        ("purgatory.fastapi.router", "import uvloop", "only for app, examples"),
        ("purgatory.bench.command", "import time", "only for purgatory.bench.measurements"),
        ("purgatory.testing", "import purgatory.metrics", "sideways from testing"),
        ("app.main", "import examples.join_group", "sideways from app"),
        ("app.main", "import tests.conftest", "name this vendor"),
        ("purgatory.helpers", "", "name its floor and room"),
        ("examples.helpers", "", "name its floor and room"),
        ("examples.join_group.main", "from purgatory import limits", "nothing deeper"),
        ("examples.join_group.main", "from purgatory.fastapi.router import X", "nothing deeper"),
        ("examples.join_group.main", "import purgatory.event_loop", "nothing deeper"),
        ("examples.join_group.main", "from purgatory import _secret", "public names only"),
        ("examples.join_group.main", "import examples.acks_all", "sideways from examples"),
        ("examples.join_group.main", "import app", "sideways from examples"),
    ],
)
def test_what_breaks_a_rule_is_refused(importer: str, source: str, complaint: str) -> None:
    """The checker finds what it is for, and says which rule it breaks."""
    assert any(complaint in sentence for sentence in violations(importer, source))


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("purgatory.timer.clock", "import time"),
        ("purgatory.timer.wheel", "from .task import TimerTask"),
        ("purgatory.operations.watchers", "from purgatory.operations import DelayedOperation"),
        (
            "purgatory.event_loop.expiration_reaper",
            "import asyncio\nfrom purgatory.timer import SystemTimer",
        ),
        ("purgatory.purgatory", "from purgatory.signals.memory import MemorySignals"),
        ("purgatory.jobs.callbacks.webhook", "import httpx"),
        ("purgatory.fastapi.router", "from fastapi import APIRouter\nfrom purgatory import X"),
        ("purgatory.testing", "from purgatory.purgatory import Purgatory"),
        ("app.main", "from purgatory.journal import Journal"),
        ("examples.join_group.main", "from purgatory.fastapi import install"),
        ("examples.join_group.main", "from examples.join_group.coordinator import Coordinator"),
    ],
)
def test_what_keeps_the_rules_is_allowed(importer: str, source: str) -> None:
    """The checker does not refuse whatever it sees."""
    assert violations(importer, source) == []


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
    assert "up from timer" in sentence


@pytest.mark.parametrize("vendor", ["anyio", "fastapi", "pydantic", "starlette"])
def test_vendors_are_blocked_in_the_test_above(vendor: str) -> None:
    """The test before this one can fail."""
    result = _import_without_vendors(vendor)
    assert result.returncode == 1
    assert f"{vendor} is blocked" in result.stderr
