"""Check that the built site documents each public name: `make docs` calls this.

python .build/check_reference.py site
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def missing(site: Path) -> list[str]:
    """Return the names of `__all__` of each documented package without an anchor on its page."""
    found: list[str] = []
    for page in sorted((ROOT / "docs/reference").glob("*.md")):
        modules = re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        if modules:
            built = (site / "reference" / page.with_suffix(".html").name).read_text("utf-8")
            anchors = set(re.findall(r'\bid="?([\w.]+)', built))
            found += [
                f"{module}.{name}"
                for module in modules
                for name in exported(module)
                # The second: a module of the same name hides it, and it is documented by itself.
                if not {f"{module}.{name}", f"{module}.{name}.{name}"} & anchors
            ]
    return found


def exported(module: str) -> list[str]:
    """Return `__all__` of a module, without importing what it needs; empty if it has none."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return []  # a function or class
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


if __name__ == "__main__":
    names = missing(Path(sys.argv[1]))
    if names:
        sys.exit(f"The site does not document {', '.join(names)}: give each a docstring.")
