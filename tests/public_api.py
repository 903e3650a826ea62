"""The stable names of docs/stability.md as a stub, which Griffe can compare with that of a release.

`python -m tests.public_api`, or `make public-api`, writes it: a step of a release.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Final

import griffe

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "stability.md"
RELEASED: Final = ROOT / "docs" / "reference" / "api.txt"
HEAD: Final = """\
# The stable names as they are in {version}: docs/stability.md. Written by "make public-api".
from typing import Any, overload
"""

_ROW: Final = re.compile(r"^\| `?([\w.]+)`? \| (`.*`) \|$", re.MULTILINE)


def stable_names() -> dict[str, list[str]]:
    """Return the rows of the page: {module, class or "Constructors": names}."""
    rows = _ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {owner: re.findall(r"`(\w+)`", names) for owner, names in rows}


@cache
def stub() -> str:
    """Return the stable names as they are in the code."""
    package = griffe.load("purgatory", search_paths=[ROOT])
    stable = stable_names()
    parts = [HEAD.format(version=version())]
    for module, names in stable.items():
        if module.startswith("purgatory"):
            parts.append(f"\n# {module}\n")
            for name in names:
                item = _target(package[f"{module}.{name}".split(".", 1)[1]])
                if isinstance(item, griffe.Class):
                    parts.append(_class(item, stable.get(name), name in stable["Constructors"]))
                else:
                    parts.append(_line(name, item))
    return "".join(parts)


def version() -> str:
    """Return the project's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def breaks(old: str, new: str) -> list[str]:
    """Return what those who use the old one may trip over, each with the name it is about."""
    before, after = (griffe.visit("api", filepath=RELEASED, code=code) for code in (old, new))
    return [
        f"{found.obj.path.removeprefix('api.')}: {found.kind.value}"
        for found in griffe.find_breaking_changes(before, after)
    ] + list(_other_breaks(before, after))


def _other_breaks(before: griffe.Object, after: griffe.Object) -> Iterator[str]:
    """Yield attributes of another type or value, and lost overloads: Griffe compares neither."""
    for name, old in before.members.items():
        new = after.members.get(name)
        if isinstance(old, griffe.Class) and new is not None:
            yield from _other_breaks(old, _target(new))
        elif isinstance(old, griffe.Function) and isinstance(new, griffe.Function):
            if not _overloads(old) <= _overloads(new):
                yield f"{old.path.removeprefix('api.')}: one of its overloads was changed"
        elif (
            isinstance(old, griffe.Attribute)
            and isinstance(new, griffe.Attribute)
            and _line(name, old, old.parent) != _line(name, new, new.parent)
        ):
            yield f"{old.path.removeprefix('api.')}: its type or value was changed"


def _overloads(function: griffe.Function) -> set[str]:
    return {_line(function.name, each) for each in function.overloads or ()}


def _target(item: griffe.Object | griffe.Alias) -> griffe.Object:
    target = item.final_target if isinstance(item, griffe.Alias) else item
    # A function may hide the module of the same name that it comes from, but not from Griffe.
    return _target(target[target.name]) if isinstance(target, griffe.Module) else target


def _class(item: griffe.Class, members: list[str] | None, has_constructor: bool) -> str:
    """Return the lines of a class with these members, or with all that are public."""
    lines = [
        indent(_line(name, _target(found), item), "    ")
        for name, found in item.all_members.items()
        if (has_constructor and name == "__init__")
        or (not name.startswith("_") and (members is None or name in members))
    ]
    bases = ", ".join(map(str, item.bases))
    return f"class {item.name}({bases}):\n" + ("".join(lines) or "    ...\n")


def _line(name: str, item: griffe.Object, owner: griffe.Object | None = None) -> str:
    if isinstance(item, griffe.Function):
        returned = f" -> {item.returns}" if item.returns is not None else ""
        keyword = "async def" if "async" in item.labels else "def"
        overloads = "".join(f"@overload\n{_line(name, each)}" for each in item.overloads or ())
        return f"{overloads}{keyword} {name}({_parameters(item)}){returned}: ...\n"
    assert isinstance(item, griffe.Attribute), item
    if item.annotation is not None:
        return f"{name}: {item.annotation}\n"
    # What a member of an enumeration or an alias is, and no other value, belongs to its contract.
    if not isinstance(owner, griffe.Class) or any("Enum" in str(base) for base in owner.bases):
        return f"{name} = {item.value}\n"
    return f"{name}: Any\n"


def _parameters(function: griffe.Function) -> str:
    """Return them as they are written, their defaults included."""
    parts: list[str] = []
    kinds = [parameter.kind for parameter in function.parameters]
    for index, parameter in enumerate(function.parameters):
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not {
            griffe.ParameterKind.keyword_only,
            griffe.ParameterKind.var_positional,
        } & set(kinds[:index]):
            parts.append("*")
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
        text = stars.get(kind, "") + parameter.name
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and kind not in stars:
            text += f" = {parameter.default}"
        parts.append(text)
        if kind is griffe.ParameterKind.positional_only and (
            kinds[index + 1 : index + 2] != [kind]
        ):
            parts.append("/")
    return ", ".join(parts)


if __name__ == "__main__":
    RELEASED.write_text(stub(), encoding="utf-8")
