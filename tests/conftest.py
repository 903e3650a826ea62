"""Fixtures for every test."""

import pytest


# Both loops on purpose: uvloop keeps timers in its own way, and a timer is what we are.
@pytest.fixture(
    scope="module",  # as in anyio: a fixture of a module may be async, and asks for its loop
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run each async test on the loop of the standard library and on uvloop."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend
