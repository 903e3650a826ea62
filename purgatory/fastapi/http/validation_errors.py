"""All that is wrong with the parameters of one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from purgatory.fastapi.http.problems import Problem

Args = ParamSpec("Args")
Result = TypeVar("Result")


class ParameterErrors:
    """Collects refusals of single parameters, so that a client is told of all of them at once."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        """Begin without any."""
        self._found: list[Problem] | None = None

    def read(
        self, reader: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
    ) -> Result | None:
        """Return what `reader` returns; None, where it refuses that, which is kept."""
        try:
            return reader(*args, **kwargs)
        except Problem as problem:
            self.add(problem)
            return None

    def add(self, problem: Problem) -> None:
        """Keep one refusal."""
        if self._found is None:
            self._found = []
        self._found.append(problem)

    def refuse(self) -> None:
        """Raise what was found, if anything was: one Problem, with `errors` where it is several."""
        if self._found is None:
            return
        first = self._found[0]
        errors = [error for problem in self._found for error in _errors(problem)]
        if len(errors) > 1:
            raise Problem(
                first.kind.slug, first.detail, **{**first.members, "errors": errors}
            ) from first
        raise first


def _errors(problem: Problem) -> list[dict[str, object]]:
    """Return the errors of a refusal that may itself be of several parameters."""
    members = problem.members
    if "errors" in members:
        errors: list[dict[str, object]] = members["errors"]
        return errors
    return [
        {"param": members["param"], "detail": problem.detail, "allowed": members["allowed"]},
    ]
