"""A stage: contenders that do the same steps in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.core.plan import Plan

Figures = dict[str, float]
"""The figures of one step: {measure: figure}."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of doing the work of a stage."""

    prepare: Callable[[], object]
    """Returns, on the running loop, the object whose async methods are the steps."""
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop
    needs_uvloop: bool = False
    needs_pyarrow: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One action of the contenders."""

    do: str
    """The name of the method; it takes `count` and returns Figures."""
    count: int
    is_timed: bool = True
    """False: all contenders do it at the same time, as its figures are not CPU time."""
    without: frozenset[str] = frozenset()
    """Contenders that leave this step out."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Contenders, and their steps."""

    contenders: Mapping[str, Contender]
    steps: Callable[[Plan], Sequence[Step]]
    is_idle: bool = False
    """True: the last step only waits, and may do so while other stages run."""
