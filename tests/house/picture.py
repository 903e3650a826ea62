"""The picture of the house in docs/architecture.md, drawn from the imports."""

import ast
import re
from collections.abc import Iterable, Mapping

from tests.house.imports import ROOT, files, imports_of_file, module_name
from tests.house.rules import entry, place
from tests.house.table import HOUSE

PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- drawn by `make docs-house`: begin -->"
END = "<!-- drawn by `make docs-house`: end -->"
FLOORS = {
    1: "1: time",
    2: "2: waiting",
    3: "3: the event loop, jobs, the journal",
    4: "4: the web, the pipeline",
    5: "5: the service, the examples",
}

Edges = Mapping[str, Iterable[str]]


def used_rooms() -> dict[str, set[str]]:
    """Return, for each room, the other rooms that its modules import."""
    used: dict[str, set[str]] = {room: set() for _, room in HOUSE.values()}
    for path in files():
        _, room = place(module_name(path))
        for item in imports_of_file(path):
            if entry(item.path):
                used[room].add(place(item.path)[1])
    return {room: rooms - {room} for room, rooms in used.items()}


def picture() -> str:
    """Return the drawing as Markdown: the house, then the inside of each room that has rooms."""
    used = used_rooms()
    parts = [_floors(used)]
    for suite in sorted({room.partition("/")[0] for room in used if "/" in room}):
        if any(room.startswith(f"{suite}/") for room in used[suite]):
            parts += [f"### Inside `{_label(suite)}`", _inside(suite, used)]
    return "\n\n".join(parts)


def redrawn(page: str) -> str:
    """Return the page with its drawing replaced by the present one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{PAGE.name} has lost its marks {BEGIN!r} and {END!r}"
    return f"{before}{BEGIN}\n\n{picture()}\n\n{END}{after}"


def reduced(edges: Edges) -> dict[str, set[str]]:
    """Return the edges of an acyclic graph without those that a longer path implies."""

    def reachable(start: str) -> set[str]:
        return set().union(*({end} | reachable(end) for end in edges.get(start, ())))

    return {
        start: set(ends) - set().union(*(reachable(end) for end in ends))
        for start, ends in edges.items()
    }


def _floors(used: Edges) -> str:
    """Return the overview: one node for each room and its inner rooms, in a box for each floor."""
    floor_of = {room.partition("/")[0]: floor for floor, room in HOUSE.values()}
    edges: dict[str, set[str]] = {suite: set() for suite in floor_of}
    for room, targets in used.items():
        suite = room.partition("/")[0]
        edges[suite] |= {target.partition("/")[0] for target in targets} - {suite}
    lines = ["```mermaid", "flowchart TB"]
    for floor in sorted(FLOORS, reverse=True):
        suites = sorted(suite for suite in floor_of if floor_of[suite] == floor)
        boxes = [f"    {_node(suite)}[{_quoted(_label(suite))}]" for suite in suites]
        lines += [f'  subgraph floor{floor}["{FLOORS[floor]}"]', *boxes, "  end"]
    return "\n".join([*lines, *_arrows(edges), "```"])


def _inside(suite: str, used: Edges) -> str:
    """Return the drawing of the rooms within a room, and what each of them holds."""
    rooms = sorted(room for room in used if room.partition("/")[0] == suite)
    edges = {room: set(used[room]) & set(rooms) for room in rooms}
    names = {room: room.partition("/")[2] or _label(room) for room in rooms}
    boxes = [f"  {_node(room)}[{_quoted(names[room])}]" for room in rooms]
    rows = [f"| `{names[room]}` | {_purpose(room)} |" for room in rooms]
    drawing = ["```mermaid", "flowchart TB", *boxes, *_arrows(edges), "```"]
    return "\n".join([*drawing, "", "| room | what it holds |", "|---|---|", *rows])


def _arrows(edges: Edges) -> list[str]:
    return [
        f"  {_node(start)} --> {_node(end)}"
        for start, ends in sorted(reduced(edges).items())
        for end in sorted(ends)
    ]


def _label(room: str) -> str:
    """Return the path of a room's folder or module."""
    if room == "public names":
        return "purgatory/__init__.py"
    paths = _paths(room)
    return ", ".join(f"{path}/" if (ROOT / path).is_dir() else f"{path}.py" for path in paths)


def _purpose(room: str) -> str:
    """Return the first sentence of the docstring of a room's folder."""
    path = ROOT / _paths(room)[0]
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    documented = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=\.)\s|\n\n", documented)[0].replace("\n", " ").replace("|", "\\|")


def _paths(room: str) -> list[str]:
    """Return the paths of a room's folders, without suffix; of its modules if it has no folder."""
    modules = sorted(name for name, (_, there) in HOUSE.items() if there == room)
    paths = [name.replace(".", "/") for name in modules]
    return [path for path in paths if (ROOT / path).is_dir()] or paths


def _node(room: str) -> str:
    return re.sub(r"\W", "_", room)


def _quoted(label: str) -> str:
    return f'"{label}"'
