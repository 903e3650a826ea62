"""The docs name what exists."""

import builtins
import importlib
import re
import tomllib
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from packaging.requirements import Requirement

import purgatory
from purgatory import Purgatory
from purgatory.jobs import Jobs
from purgatory.jobs.sql import metadata
from tests.cases import cases
from tests.house.imports import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("purgatory", "app", "docs", "examples", "migrations", "tests")

# Names with dots that are no modules: handlers, keys of metadata, spans and attributes, loggers.
DATA = {
    "purgatory.audit",
    "purgatory.callback",
    "purgatory.fired_key",
    "purgatory.job",
    "purgatory.job.attempt",
    "purgatory.job.handler",
    "purgatory.job.id",
    "purgatory.keys",
    "purgatory.kind",
    "purgatory.outcome",
    "purgatory.sample",
    "purgatory.schema",
    "purgatory.timeout_ms",
    "purgatory.wait",
}
# Files that are the reader's own.
OTHERS = {
    "app.py",
    "check.py",
    "env.py",
    "events.py",
    "fire.py",
    "make_token.py",
    "orders.py",
    "shop.py",
}
# Names of Kafka without a counterpart here, of browsers and other tools, and of data.
FOREIGN = {
    "ExecStartPost",
    "RawLocalFileSystem",
    "TimeoutStopSec",
    "SharedWorker",
    "LimitNOFILE",
    "EventSource",
    "BroadcastChannel",
    "CancelledError",
    "DelayQueue",
    "ExpiredOperationReaper",
    "KillMode",
    "NoBackoff",
    "NumDelayedOperations",
    "PurgatorySize",
    "RedisCluster",
    "StoreFull",  # the reason for a rejected row, as `schedule` writes it
    "TimerTaskEntry",
    "UvicornWorker",
}


def code_spans(page: str) -> list[str]:
    """Return what stands in backticks, without fenced blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))


def missing_paths(page: str) -> set[str]:
    """Return the paths of the repository that are named and do not exist."""
    spans = code_spans(page)
    named = {span for span in spans if re.fullmatch(rf"(?:{'|'.join(FOLDERS)})/[\w./*-]*", span)}
    files = set(
        re.findall(r"(?<![\w./*-])[a-z]\w*\.(?:py|pyx|pxd|lua)\b", " ".join(code_spans(page)))
    )
    missing = {path for path in named if not list(ROOT.glob(path.rstrip("/")))}
    return missing | (files - own_files() - OTHERS)


@cache
def own_files() -> set[str]:
    """Return the name of each file of the repository, which takes long to look through."""
    return {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}


def missing_names(page: str) -> set[str]:
    """Return the dotted names below `purgatory` that are named and do not exist."""
    spans = " ".join([*code_spans(page), *re.findall(r"^from (purgatory\S*)", page, re.M)])
    named = set(re.findall(r"(?<![\w./@-])purgatory(?:\.[A-Za-z_]\w*)+", spans))
    return {name for name in named - DATA if not exists(name)}


def missing_imports(page: str) -> set[str]:
    """Return the names that an example imports from us and that do not exist."""
    found = re.findall(r"^from (purgatory[\w.]*) import ([\w, ]+)", page, re.M)
    return {
        f"{module}.{name}"
        for module, names in found
        for name in re.split(r", *", names.partition(" as ")[0].strip())
        if not exists(f"{module}.{name}")
    }


def missing_classes(page: str, known: set[str]) -> set[str]:
    """Return the names in CamelCase that no module of the repository defines or imports."""
    spans = " ".join(code_spans(page))
    named = set(re.findall(r"(?<![\w-])[A-Z][a-z]+[A-Z]\w*(?![\w-]*=)", spans))
    return (
        (named | set(re.findall(r"\b[A-Z]\w+Error\b", page)))
        - known
        - FOREIGN
        - vars(builtins).keys()
    )


def exists(name: str) -> bool:
    """Return True iff `name` is a module, or in one, or of `purgatory` or `purgatory.jobs`."""
    module, _, member = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ImportError:
        if module == "purgatory":
            return hasattr(purgatory, member) or hasattr(Purgatory, member)
        try:
            if hasattr(importlib.import_module(module), member):
                return True
            return module == "purgatory.jobs" and hasattr(Jobs, member)
        except ImportError:
            return hasattr(Purgatory, module.removeprefix("purgatory."))
    return True


@pytest.fixture(scope="module")
def known_classes() -> set[str]:
    """Return each class, import and other name that the repository's Python files use."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    # Compiled, they know their names: to walk through the trees takes three times as long.
    parts = [compile(path.read_text(encoding="utf-8"), path, "exec") for path in paths]
    found: set[str] = set()
    while parts:
        code = parts.pop()
        found |= {name.rpartition(".")[2] for name in code.co_names + code.co_varnames}
        parts += [const for const in code.co_consts if isinstance(const, CodeType)]
    return found


@cases("page", PAGES)
def test_what_a_page_names_exists(page: Path, known_classes: set[str]) -> None:
    """Each path, module and class in the docs is one of this commit."""
    text = page.read_text(encoding="utf-8")
    missing = missing_paths(text) | missing_names(text) | missing_imports(text)
    assert missing | missing_classes(text, known_classes) == set()


def test_what_does_not_exist_is_found() -> None:
    """The test before this one can fail."""
    page = "`purgatory/nowhere.py` `purgatory.nowhere.X` `purgatory.fire` raises NowhereError."
    page += " `purgatory.jobs.pause` `purgatory.jobs.X`"
    page += "\n```python\nfrom purgatory import Purgatory, Nowhere\n```\n`NoSuchClass(1)`"
    assert missing_paths(page) == {"purgatory/nowhere.py"}
    assert missing_names(page) == {"purgatory.nowhere.X", "purgatory.jobs.X"}
    assert missing_imports(page) == {"purgatory.Nowhere"}
    assert missing_classes(page, set()) == {"NowhereError", "NoSuchClass"}


def test_the_site_has_every_page() -> None:
    """The navigation names each page below docs/, once."""
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]]
    assert sorted(nav_pages(site["nav"])) == sorted(pages)


def nav_pages(entry: Any) -> list[str]:
    """Return the pages in an entry of the navigation: a path, a titled one, or a section."""
    if isinstance(entry, str):
        return [entry]
    entries = entry.values() if isinstance(entry, dict) else entry
    return [page for item in entries for page in nav_pages(item)]


def test_the_table_of_extras_is_complete() -> None:
    """docs/how-to/install.md has a row for each extra, with all that it installs."""
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", page, re.MULTILINE)
    shown = {extra: set(re.findall(r"`([^`]+)`", installs)) for extra, installs in rows}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert shown == {extra: installed_by(lines) for extra, lines in extras.items()}
    named = {name for page in PAGES for name in extras_named(page.read_text(encoding="utf-8"))}
    assert named <= extras.keys()


def installed_by(requirements: list[str]) -> set[str]:
    """Return the distributions that an extra requires, and the other extras that it includes."""
    parsed = [Requirement(line) for line in requirements]
    own = {extra for one in parsed if one.name == "fastapi-purgatory" for extra in one.extras}
    return own | {one.name for one in parsed if one.name != "fastapi-purgatory"}


def extras_named(page: str) -> list[str]:
    """Return the extras that a page tells to install."""
    found = re.findall(r"fastapi-purgatory\[([\w,]+)\]", page)
    return [extra for extras in found for extra in extras.split(",")]


def test_the_tables_of_jobs_are_named() -> None:
    """docs/reference/stores.md lists those that are created, all of them."""
    page = (ROOT / "docs" / "reference" / "stores.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"^The tables \((.*?)\) are created", page, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(metadata.tables)
