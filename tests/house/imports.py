"""The imports of source texts: Python's, and the cimports of Cython's declarations."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("purgatory", "app", "examples")

_CIMPORT = re.compile(r"^(?:from ([\w.]+) )?cimport ([\w.]+(?:, *[\w.]+)*)", re.MULTILINE)


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
    """Yield every import of a Python text: those in functions and under TYPE_CHECKING too."""
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


def cimports(source: str) -> Iterator[Import]:
    """Yield every cimport of a Cython declaration (.pxd), as imports of whole modules."""
    for found in _CIMPORT.finditer(source):
        line = source.count("\n", 0, found.start()) + 1
        for module in [found[1]] if found[1] else re.split(", *", found[2]):
            yield Import(line, module)


def files() -> list[Path]:
    """Return every Python file of the package, the service and the examples."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def imports_of_file(path: Path) -> list[Import]:
    """Return the imports of a Python file, and of the .pxd beside it."""
    found = imports(
        module_name(path), path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py"
    )
    declaration = path.with_suffix(".pxd")
    if not declaration.exists():
        return list(found)
    cython = (item for item in cimports(declaration.read_text(encoding="utf-8")))
    vendors = ("cpython", "libc", "cython")
    return [*found, *(item for item in cython if item.module.partition(".")[0] not in vendors)]


def module_name(path: Path) -> str:
    """Return the dotted name under which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _origin(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parents = package.split(".")
    parents = parents[: len(parents) - node.level + 1]
    return ".".join([*parents, node.module] if node.module else parents)
