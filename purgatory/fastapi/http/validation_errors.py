"""Everything that is wrong with the parameters of one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from purgatory.fastapi.http.problems import Problem

Args = ParamSpec("Args")
Result = TypeVar("Result")


class ParameterErrors:
    """Collects the errors of single parameters, so that one response reports all of them."""

    __slots__ = ("_problems",)

    def __init__(self) -> None:
        """Begin without errors."""
        self._problems: list[Problem] | None = None

    def collect(
        self, parse: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
    ) -> Result | None:
        """Return what `parse` returns; None if it raises a Problem, which is added."""
        try:
            return parse(*args, **kwargs)
        except Problem as problem:
            self.add(problem)
            return None

    def add(self, problem: Problem) -> None:
        """Add one error."""
        if self._problems is None:
            self._problems = []
        self._problems.append(problem)

    def raise_if_any(self) -> None:
        """Raise one Problem if errors were added; its `errors` lists them if there are several."""
        if self._problems is None:
            return
        first = self._problems[0]
        errors = [error for problem in self._problems for error in _errors(problem)]
        if len(errors) > 1:
            raise Problem(
                first.kind.slug, first.detail, **{**first.members, "errors": errors}
            ) from first
        raise first


def _errors(problem: Problem) -> list[dict[str, object]]:
    """Return the errors of a problem, which may be about several parameters itself."""
    members = problem.members
    if "errors" in members:
        errors: list[dict[str, object]] = members["errors"]
        return errors
    return [
        {"param": members["param"], "detail": problem.detail, "allowed": members["allowed"]},
    ]
