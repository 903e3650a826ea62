"""What each test of a run calls, and how long it takes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import pytest

Function = tuple[str, int]
"""A module by its path in the project, and the first line of a function in it."""


@dataclass(frozen=True, slots=True)
class RecordedTest:
    """A test that passed; `functions` are those of the package that ran in this process."""

    nodeid: str
    seconds: float
    functions: frozenset[Function]

    @property
    def file(self) -> str:
        """The path of the test's module."""
        return self.nodeid.partition("::")[0]


class Recorder:
    """A plugin of pytest that records its tests, in threads too, for `read_tests`."""

    def __init__(self, root: Path, result: Path) -> None:
        self._prefix = f"{root}/"
        self._result = result
        # By id: a code object's hash is computed from all of its content each time.
        self._codes: dict[int, CodeType] = {}
        self._tests: list[tuple[str, float, list[Function]]] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Record one test with its fixtures."""
        self._codes = {}
        started = time.perf_counter()
        _trace(self._on_call)
        try:
            return (yield)
        finally:
            _trace(None)
            seconds = time.perf_counter() - started
            self._tests.append((item.nodeid, seconds, self._functions()))

    def _on_call(self, frame: FrameType, event: str, argument: object) -> None:
        self._codes[id(frame.f_code)] = frame.f_code

    def pytest_sessionfinish(self) -> None:
        """Leave what was recorded in a file: this process is a fork."""
        self._result.write_text(json.dumps(self._tests))

    def _functions(self) -> list[Function]:
        return [
            (code.co_filename.removeprefix(self._prefix), code.co_firstlineno)
            for code in self._codes.copy().values()
            if code.co_filename.startswith(self._prefix + "purgatory/")
        ]


def read_tests(result: Path) -> list[RecordedTest]:
    """Return what a Recorder has left in a file."""
    return [
        RecordedTest(nodeid, seconds, frozenset((path, line) for path, line in functions))
        for nodeid, seconds, functions in json.loads(result.read_text())
    ]


def _trace(on_call: Callable[[FrameType, str, object], None] | None) -> None:
    # `settrace`, not `setprofile`: without a function for lines it is called for calls only.
    sys.settrace(on_call)
    threading.settrace(on_call)  # None undoes it
