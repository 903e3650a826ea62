"""What is mutated, and what ought to notice: `[tool.mutation]` of pyproject.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Room:
    """A folder of modules, and the tests that are run on each of its mutants."""

    path: str
    tests: tuple[str, ...]

    def modules(self, root: Path) -> list[Path]:
        """Return the modules of the room, by their paths from `root`."""
        return sorted(
            found.relative_to(root)
            for found in (root / self.path).glob("*.py")
            if found.name != "__init__.py"
        )


@dataclass(frozen=True, slots=True)
class MutationSettings:
    """The rooms, and how long tests may take longer before a mutant counts as noticed."""

    timeout: float
    copied: tuple[str, ...]
    preloaded: tuple[str, ...]
    rooms: tuple[Room, ...]


def read_settings(root: Path = ROOT) -> MutationSettings:
    """Return the settings of the project in `root`."""
    table = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["mutation"]
    return MutationSettings(
        timeout=table["timeout-seconds"],
        copied=tuple(table["copied"]),
        preloaded=tuple(table["preloaded"]),
        rooms=tuple(Room(path, tuple(tests)) for path, tests in table["rooms"].items()),
    )
