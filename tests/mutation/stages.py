"""In which order the tests of a room are run on a mutant: first those that notice it soonest."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest

from tests.mutation.mutants import Mutant
from tests.mutation.recorder import RecordedTest

FIRST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Tests that are run together: of `paths`, those in `nodeids`, or all but them."""

    paths: tuple[str, ...]
    nodeids: frozenset[str]
    seconds: float
    is_rest: bool = False


class Selection:
    """A plugin of pytest that runs a stage."""

    def __init__(self, nodeids: Collection[str], is_rest: bool) -> None:
        self._nodeids = nodeids
        self._is_rest = is_rest

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the other tests of the files out."""
        items[:] = [item for item in items if (item.nodeid in self._nodeids) != self._is_rest]


def stages(mutant: Mutant, recorded: Iterable[RecordedTest], root: Path) -> list[Stage]:
    """Return all tests of the mutant's room: a few that call what it changes, then all such tests.

    The rest comes last: they start processes, or never run what it changes. `recorded` may have
    tests of other rooms.
    """
    tests = [test for test in recorded if _is_in(test, mutant.room.tests)]
    called = _callers(mutant, tests, root)
    first = _within(called, FIRST_SECONDS)
    chosen = {test.nodeid for test in first}
    later = [test for test in called if test.nodeid not in chosen]
    found = [_stage(part) for part in (first, later) if part]
    nodeids = frozenset(test.nodeid for test in called)
    seconds = sum(test.seconds for test in tests if test.nodeid not in nodeids)
    return [*found, Stage(mutant.room.tests, nodeids, seconds, is_rest=True)]


def _is_in(test: RecordedTest, paths: Iterable[str]) -> bool:
    return any(test.file == path or test.file.startswith(f"{path}/") for path in paths)


def _callers(mutant: Mutant, tests: list[RecordedTest], root: Path) -> list[RecordedTest]:
    module = str(mutant.spec.module_path)
    for start, end in _spans((root / module).read_text(), mutant.spec.start_pos[0]):
        found = [
            test
            for test in tests
            if any(path == module and start <= line <= end for path, line in test.functions)
        ]
        if found:
            return _by_file(found)
    return []


def _spans(source: str, line: int) -> Iterator[tuple[int, int]]:
    """Yield the lines of the functions and classes around a line, from within, and the module."""
    found: list[tuple[int, int]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if start <= line <= (node.end_lineno or 0):
                found.append((start, node.end_lineno or 0))
    yield from sorted(found, key=lambda span: span[1] - span[0])
    yield 0, len(source)


def _by_file(tests: list[RecordedTest]) -> list[RecordedTest]:
    """Sort files by how little beside the mutant they call, and the tests of each by time."""
    files: defaultdict[str, list[RecordedTest]] = defaultdict(list)
    for test in tests:
        files[test.file].append(test)
    breadth = {file: fmean(len(test.functions) for test in found) for file, found in files.items()}
    return sorted(tests, key=lambda test: (breadth[test.file], test.file, test.seconds))


def _within(tests: list[RecordedTest], seconds: float) -> list[RecordedTest]:
    found: list[RecordedTest] = []
    for test in tests:
        if test.seconds <= seconds:
            found.append(test)
            seconds -= test.seconds
    return found


def _stage(tests: list[RecordedTest]) -> Stage:
    return Stage(
        paths=tuple(dict.fromkeys(test.file for test in tests)),
        nodeids=frozenset(test.nodeid for test in tests),
        seconds=sum(test.seconds for test in tests),
    )
