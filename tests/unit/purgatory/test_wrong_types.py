"""Arguments of a wrong type: each error names the value and the right form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import Limits, Purgatory, PurgatoryClosedError
from purgatory.fastapi import BearerTokens, WaitSettings, create_router, install
from purgatory.jobs import MemoryJobStore
from tests.cases import cases

TOKEN = "a-token-that-nobody-guesses"

# The values are wrong on purpose.
_purgatory: Any = Purgatory
_install: Any = install
_create_router: Any = create_router
_tokens: Any = BearerTokens
_settings: Any = WaitSettings
_limits: Any = Limits


@cases(
    "make, text",
    [
        (lambda: _purgatory(MemoryJobStore()), "name is .*MemoryJobStore.*jobs=store"),
        (lambda: _purgatory(jobs="sqlite:///a"), "jobs is 'sqlite:///a': give .*SqlJobStore"),
        (lambda: _purgatory(jobs=MemoryJobStore), "jobs is <class .*: give .*SqlJobStore"),
        (lambda: _purgatory(limits={"max_parked": 1}), "limits is {'max_parked': 1}: give Limits"),
        (lambda: _limits(max_parked="1"), "max_parked is '1': give a number"),
        (lambda: _limits(max_timeout=True), "max_timeout is True: give a number"),
        (lambda: _settings(max_wait="10s"), "max_wait is '10s': give a number"),
        (lambda: _settings(default_wait=None), "default_wait is None: give a number"),
        (lambda: _install(Purgatory(), FastAPI()), "app is <Purgatory .*: give the application"),
        (lambda: _install(FastAPI(), Purgatory), "purgatory is <class .*Purgatory"),
        (
            lambda: _install(FastAPI(), Purgatory(), settings={"max_wait": 1}),
            "settings is {'max_wait': 1}: give WaitSettings",
        ),
        (lambda: _create_router(Purgatory), "purgatory is <class"),
        (lambda: _tokens(TOKEN), "entries is a str: give pairs"),
        (lambda: _tokens({TOKEN: ["*"]}), "entries is a dict: give pairs"),
        (lambda: _tokens([TOKEN]), "entry 1 is no pair .*: give pairs"),
        (lambda: _tokens([(TOKEN, "*"), (TOKEN, ["*"])]), "entry 2 is no pair .*: give pairs"),
        (lambda: _tokens([("abc", "*", "*")]), "entry 1 is no pair"),
    ],
)
def test_it_is_named_where_it_is_given(make: Callable[[], object], text: str) -> None:
    """Not by what fails inside; and no token is shown."""
    with pytest.raises(TypeError, match=text) as caught:
        make()
    assert TOKEN not in str(caught.value)


def test_nothing_is_installed_by_a_wrong_call() -> None:
    """The right call works afterwards."""
    app = FastAPI()
    with pytest.raises(TypeError):
        _install(app, Purgatory)
    install(app, Purgatory())


@pytest.mark.parametrize("form", [str, Path])
def test_a_file_of_tokens_by_its_path(tmp_path: Path, form: type) -> None:
    """A string or a Path."""
    path = tmp_path / "tokens"
    path.write_text(f"{TOKEN} *\n", encoding="utf-8")
    assert len(BearerTokens.from_file(form(path))) == 1


async def test_a_predicate_that_is_none(make_purgatory: Callable[..., Purgatory]) -> None:
    """The value, instead of an error of calling it."""
    async with make_purgatory() as purgatory:
        with pytest.raises(TypeError, match="until is True: give a function"):
            await purgatory.park("a", until=True, timeout=1)  # type: ignore[arg-type] # on purpose
        assert purgatory.parked == 0


async def test_several_keys_in_a_list(make_purgatory: Callable[..., Purgatory]) -> None:
    """The way out is right for each of them."""
    keys: Any = ["a", "b"]
    async with make_purgatory() as purgatory:
        text = r"park\(\*keys, timeout=25\), cursor\(\*keys\), and fire\(key\) for each"
        with pytest.raises(TypeError, match=text):
            await purgatory.fire(keys)
        with pytest.raises(TypeError, match=text):
            purgatory.cursor(keys)
        with pytest.raises(TypeError, match=text):
            await purgatory.park(keys, "c", timeout=1)


async def test_not_open() -> None:
    """The usual causes are named."""
    purgatory = Purgatory()
    with pytest.raises(PurgatoryClosedError, match=r"with TestClient.*outermost"):
        await purgatory.fire("a")
    with pytest.raises(PurgatoryClosedError, match="with TestClient"):
        purgatory.run_threadsafe(purgatory.fire("a"))


def test_only_the_maximum_is_set() -> None:
    """A default above it is lowered to it; one that was chosen is an error."""
    assert WaitSettings(max_wait=10) == WaitSettings(max_wait=10, default_wait=10)
    assert WaitSettings(max_wait=40).default_wait == 25
    with pytest.raises(ValueError, match="lower default_wait or raise max_wait"):
        WaitSettings(max_wait=10, default_wait=20)
