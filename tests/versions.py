"""Print the lowest versions that pyproject.toml allows, as constraints for pip.

    python -m tests.versions > constraints

Each `name>=version` of an extra becomes `name==version`. What these need in turn is not pinned: pip
takes the newest, as it does for our users.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def lowest_versions() -> list[str]:
    """Return the constraints, sorted; raise ValueError for a requirement without a lower bound."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    found = set()
    for line in {line for lines in extras.values() for line in lines}:
        requirement = Requirement(line)
        if requirement.name == "fastapi-purgatory":
            continue
        bounds = [part.version for part in requirement.specifier if part.operator == ">="]
        if len(bounds) != 1:
            raise ValueError(f"{line!r} in pyproject.toml has no lower bound: give it one >=")
        found.add(f"{requirement.name}=={bounds[0]}")
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(lowest_versions()))
