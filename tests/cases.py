"""Cases of one test that differ in nothing but data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

Test = Callable[..., Any]


def cases(names: str, values: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for each of the values, in order; a failure names the case that failed.

    `names` are those of its parameters, with commas between them, as for pytest's parametrize.
    The test is one item, with one set of fixtures. What differs by loop, server or store, or fills
    a fixture, is a parameter of pytest: there each case is a test of its own.
    """
    keys = [name.strip() for name in names.split(",")]
    chosen = [dict(zip(keys, [each] if len(keys) == 1 else each, strict=True)) for each in values]

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        rest = [part for name, part in signature.parameters.items() if name not in keys]

        @wraps(test)
        async def run_async(**fixtures: Any) -> None:
            for case in chosen:
                with _named(case):
                    await test(**case, **fixtures)

        @wraps(test)
        def run(**fixtures: Any) -> None:
            for case in chosen:
                with _named(case):
                    test(**case, **fixtures)

        found: Test = run_async if inspect.iscoroutinefunction(test) else run
        found.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return found

    return decorate


@contextmanager
def _named(case: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"The case: {case!r:.500}")
        raise
