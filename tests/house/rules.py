"""What breaks the table of the house."""

import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from tests.house.imports import Import, imports
from tests.house.table import FROM_FLOOR, HOUSE, PUBLIC, ROOTS, USES, VENDORS


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Return a sentence for each rule that a source text breaks."""
    return violations_of(module, imports(module, source, is_package=is_package))


def violations_of(module: str, items: Iterable[Import]) -> list[str]:
    """Return a sentence for each import that breaks a rule."""
    if entry(module) is None or (entry(module) in ROOTS and module not in ROOTS):
        return [f"{module} is not in HOUSE: name its floor and room there, and in the design"]
    found = []
    for item in items:
        reason = _reason_against(module, item)
        if reason:
            found.append(f"{module}:{item.line} imports {item.path}: {reason}")
    return found


def circle(uses: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the rooms of a circle, the first again as the last; empty if there is none."""
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        rooms: list[str] = error.args[1][::-1]
        return rooms
    return []


def entry(path: str) -> str | None:
    """Return the longest entry of HOUSE that is `path` or holds it."""
    while path not in HOUSE and path:
        path = path.rpartition(".")[0]
    return path or None


def place(path: str) -> tuple[int, str]:
    """Return the floor and the room of a module."""
    name = entry(path)
    assert name is not None, f"{path} is not in HOUSE"
    return HOUSE[name]


def is_within(path: str, places: set[str]) -> bool:
    """Return True iff `path` is one of the places, or in one."""
    return any(path == place or path.startswith(f"{place}.") for place in places)


def _reason_against(module: str, item: Import) -> str | None:
    if entry(item.path) is None:
        return _reason_against_vendor(module, item.module.partition(".")[0])
    if module.startswith("examples") and is_within(item.module, {"purgatory"}):
        return _reason_against_private(item)
    return _reason_against_direction(module, item.path)


def _reason_against_vendor(module: str, vendor: str) -> str | None:
    floor, _ = place(module)
    is_standard = vendor in sys.stdlib_module_names
    # If Cython is installed, it only says whether a module runs compiled.
    if floor <= 2 and not is_standard and vendor != "cython":
        return "floors 1 and 2 need the standard library only"
    if floor < FROM_FLOOR.get(vendor, 0):
        return f"not below floor {FROM_FLOOR[vendor]}"
    if vendor not in VENDORS:
        return None if is_standard else "name this vendor and its room in VENDORS"
    if is_within(module, VENDORS[vendor]):
        return None
    return f"only for {', '.join(sorted(VENDORS[vendor]))}"


def _reason_against_private(item: Import) -> str | None:
    if item.module not in PUBLIC or entry(item.path) not in PUBLIC:
        return f"examples import from {', '.join(sorted(PUBLIC))} and from nothing deeper"
    if item.name and item.name.startswith("_"):
        return "examples import public names only"
    return None


def _reason_against_direction(module: str, target: str) -> str | None:
    floor, room = place(module)
    target_floor, target_room = place(target)
    if target_room == room or target_floor < floor:
        return None
    if target_floor == floor and target_room in USES.get(room, set()):
        return None
    way = "up" if target_floor > floor else "sideways"
    return f"{way} from {room} (floor {floor}) to {target_room} (floor {target_floor})"
