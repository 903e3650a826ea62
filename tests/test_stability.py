"""What docs/stability.md promises about names."""

import importlib
import re

from tests.cases import cases
from tests.public_api import RELEASED, ROOT, breaks, stable_names, stub, version

OVERLOADED = """
from typing import overload
@overload
def fire(name: str) -> str: ...
@overload
def fire(name: int) -> int: ...
def fire(name): ...
"""
NAMES = {owner: names for owner, names in stable_names().items() if owner.startswith("purgatory")}


@cases("module", NAMES)
def test_a_stable_name_is_a_public_one(module: str) -> None:
    """In `__all__` of its module."""
    assert set(NAMES[module]) <= set(importlib.import_module(module).__all__)


def test_the_stable_core_is_small() -> None:
    """Forty-two names can be kept for years."""
    assert sum(map(len, NAMES.values())) <= 42


def test_a_break_is_in_the_changelog() -> None:
    """Whatever differs from the last release such that its users may trip over it is named."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    told = " ".join(re.findall(r"`([^`]+)`", changelog))
    unnamed = [
        found
        for found in breaks(RELEASED.read_text(encoding="utf-8"), stub())
        if not re.search(rf"\b{re.escape(found.split(':')[0].split('(')[0])}\b", told)
    ]
    assert not unnamed, "name each in CHANGELOG.md, under Changed or Removed, or take it back"


def test_the_file_is_of_its_version() -> None:
    """`make public-api` writes it for a release; the next change of the API raises the version."""
    released = RELEASED.read_text(encoding="utf-8")
    if released.split(": docs/", 1)[0].endswith(f" {version()}"):
        assert released == stub(), "run make public-api, or raise the version after a release"


@cases(
    "old, new, name",
    [
        ("def fire(key: str): ...", "", "fire"),
        ("def fire(key: str): ...", "def fire(name: str): ...", "fire"),
        ("def fire(a: int = 1): ...", "def fire(a: int = 2): ...", "fire"),
        ("class A():\n    def f(self): ...", "class A():\n    ...", "A.f"),
        ("class A():\n    x: int", "class A():\n    y: int", "A.x"),
        (OVERLOADED, OVERLOADED.replace("name: int", "name: bytes"), "fire"),
        (OVERLOADED, OVERLOADED.replace("-> str", "-> bytes"), "fire"),
        ("class S(StrEnum):\n    A = 'a'", "class S(StrEnum):\n    A = 'b'", "S.A"),
    ],
)
def test_a_break_is_found(old: str, new: str, name: str) -> None:
    """A name, a parameter, a default, a member, a value."""
    assert [found.split(":")[0].split("(")[0] for found in breaks(old, new)]
    assert name in breaks(old, new)[0]


@cases(
    "new",
    [
        "def fire(key: str, value: object = None): ...",
        "def fire(key: str): ...\ndef park(key: str): ...",
    ],
)
def test_what_is_added_breaks_nobody(new: str) -> None:
    """Parameters with a default, and names."""
    assert breaks("def fire(key: str): ...", new) == []
