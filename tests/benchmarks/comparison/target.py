"""Targets of rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Below this part of a target it is not met; between this and all of it, it is met with a remark.
TOLERANCE = 0.8


class Verdict(StrEnum):
    """The relation of a figure to its target."""

    MET = "met"
    NEARLY_MET = "met at 80 %"
    NOT_MET = "not met"
    NONE = "-"


@dataclass(frozen=True, slots=True)
class Target:
    """A figure for each form of the core: at least that many times the baseline, or at most it."""

    compiled: float
    plain: float
    is_limit: bool = False
    """True: an upper limit of our own figure."""

    def figure(self, *, is_compiled: bool) -> float:
        """Return the target of a form."""
        return self.compiled if is_compiled else self.plain

    def judge(self, figure: float, *, is_compiled: bool) -> Verdict:
        """Return whether `figure` reaches the target."""
        target = self.figure(is_compiled=is_compiled)
        if self.is_limit:
            reached = target / figure if figure > 0 else 1.0
        else:
            reached = figure / target
        if reached >= 1:
            return Verdict.MET
        return Verdict.NEARLY_MET if reached >= TOLERANCE else Verdict.NOT_MET
