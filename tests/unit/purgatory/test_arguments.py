"""Arguments that are refused, and bounds that are reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from purgatory import (
    InvalidKeyError,
    InvalidTimeoutError,
    InvalidValueError,
    LimitReachedError,
    Limits,
    Purgatory,
    PurgatoryClosedError,
    Status,
)
from purgatory.fastapi import BearerTokens, WaitSettings, create_router, install
from purgatory.jobs import MemoryJobStore
from purgatory.log_text import redacted
from purgatory.timer import SystemClock
from tests.cases import cases
from tests.unit.purgatory.waiting import Make, Waiting, parked

# What is refused


@cases("timeout", [float("nan"), float("inf"), -float("inf"), -1, -0.001, 1e300, 10**400])
async def test_a_timeout_out_of_range(purgatory: Purgatory, timeout: float) -> None:
    """Is an InvalidTimeoutError, which is a ValueError, and says what is allowed."""
    with pytest.raises(InvalidTimeoutError, match="give a number of seconds from 0 to"):
        await purgatory.park("a", timeout=timeout)


@cases("timeout", [True, False, "5", None, 1 + 0j, [1]])
async def test_a_timeout_that_is_no_number(purgatory: Purgatory, timeout: Any) -> None:
    """Is a TypeError."""
    with pytest.raises(TypeError, match="give seconds as a number"):
        await purgatory.park("a", timeout=timeout)


@cases("key", ["", "x" * 257, "a\nb", "\x00", "\x7f", "\x85", "\ud800"])
async def test_a_key_that_is_refused(purgatory: Purgatory, key: str) -> None:
    """By park, fire and cancel alike, before anything is changed."""
    for timeout in (0, 1):
        with pytest.raises(InvalidKeyError):
            await purgatory.park("good", key, timeout=timeout)
    with pytest.raises(InvalidKeyError):
        await purgatory.fire(key)
    with pytest.raises(InvalidKeyError):
        await purgatory.cancel(key)
    assert (purgatory.parked, purgatory.signals.head()) == (0, 0)


async def test_a_value_that_is_refused_wakes_nobody(make_purgatory: Make) -> None:
    """Who waits goes on waiting."""
    recursive: list[object] = []
    recursive.append(recursive)
    async with make_purgatory(limits=Limits(max_value_bytes=10)) as purgatory:
        task = await parked(purgatory, "a")
        for value in (float("nan"), {1}, recursive, "x" * 9, b"x"):
            with pytest.raises(InvalidValueError):
                await purgatory.fire("a", value)
        assert (task.done(), purgatory.signals.head(), purgatory.parked) == (False, 0, 1)
        assert (await purgatory.fire("a", "x" * 8)).completed == 1
        assert (await task).value == "x" * 8


# Limits


async def test_the_limit_of_parked_operations(make_purgatory: Make) -> None:
    """One more is refused by name; a place that is left can be taken."""
    async with make_purgatory(limits=Limits(max_parked=2)) as purgatory:
        tasks = [await parked(purgatory, "a"), await parked(purgatory, "b")]
        with pytest.raises(
            LimitReachedError, match=r"2 operations wait already.*Limits\(max_parked="
        ) as caught:
            await purgatory.park("c", timeout=1)
        assert (caught.value.limit, caught.value.maximum, purgatory.parked) == ("max_parked", 2, 2)
        with pytest.raises(LimitReachedError):
            purgatory.park_operation(Waiting(), ["c"])
        assert purgatory.statistics().refused == {"max_parked": 2}
        await purgatory.fire("a")
        tasks.append(await parked(purgatory, "c"))
        await purgatory.drain()
        await asyncio.gather(*tasks)


@cases("character, size", [("k", 1), ("\u0439", 4), ("\U0001f511", 4)])
async def test_the_limit_of_parked_bytes(make_purgatory: Make, character: str, size: int) -> None:
    """Several keys count by the memory of their text; one more is refused, unless for one key."""
    keys = [character * 200 + str(number) for number in range(3)]
    taken = 3 * (128 + 201 * size)
    async with make_purgatory(limits=Limits(max_parked_bytes=taken)) as purgatory:
        tasks = [await parked(purgatory, *keys)]
        assert purgatory.statistics().parked_bytes == taken
        with pytest.raises(
            LimitReachedError, match=rf"take {taken} bytes.*Limits\(max_parked_bytes="
        ) as caught:
            await purgatory.park("a", "b", timeout=1)
        assert (caught.value.limit, caught.value.maximum) == ("max_parked_bytes", taken)
        with pytest.raises(LimitReachedError):
            purgatory.park_operation(Waiting(), ["a", "b"])
        tasks.append(await parked(purgatory, keys[0]))
        assert purgatory.statistics().parked_bytes == taken
        assert purgatory.statistics().refused == {"max_parked_bytes": 2}
        await purgatory.fire(keys[1])
        assert purgatory.statistics().parked_bytes == 0
        tasks.append(await parked(purgatory, "a", "b"))
        assert purgatory.statistics().parked_bytes == 258
        await purgatory.drain()
        assert purgatory.statistics().parked_bytes == 0
        await asyncio.gather(*tasks)


async def test_the_limit_of_parked_operations_on_a_key(make_purgatory: Make) -> None:
    """Another key has places of its own."""
    async with make_purgatory(limits=Limits(max_parked_per_key=2)) as purgatory:
        tasks = [await parked(purgatory, "a", "b"), await parked(purgatory, "a")]
        with pytest.raises(
            LimitReachedError, match=r"on key 'a' already.*Limits\(max_parked_per_key="
        ) as caught:
            await purgatory.park("b", "a", timeout=1)
        assert (caught.value.limit, caught.value.maximum) == ("max_parked_per_key", 2)
        assert purgatory.statistics().refused == {"max_parked_per_key": 1}
        tasks.append(await parked(purgatory, "b"))
        await purgatory.drain()
        await asyncio.gather(*tasks)


async def test_the_limit_of_keys(make_purgatory: Make) -> None:
    """The same key twice is one key."""
    async with make_purgatory(limits=Limits(max_keys_per_operation=2)) as purgatory:
        for keys, text in ((), "0 keys: .* 1 to 2.*at least one$"), ("abc", "3 keys: .*give fewer"):
            with pytest.raises(ValueError, match=text):
                await purgatory.park(*keys, timeout=1)
        task = await parked(purgatory, "a", "b", "a")
        await purgatory.fire("b")
        await task


async def test_the_limit_of_a_timeout(make_purgatory: Make) -> None:
    """The limit itself is allowed."""
    async with make_purgatory(limits=Limits(max_timeout=2.5)) as purgatory:
        assert (await purgatory.park("a", timeout=2.5)).status is Status.EXPIRED
        with pytest.raises(InvalidTimeoutError, match=r"from 0 to 2\.5"):
            await purgatory.park("a", timeout=2.501)


async def test_the_limits_of_the_history(make_purgatory: Make) -> None:
    """Signals per key, in all, and bytes: what is oldest makes way."""
    for limits, kept in [
        (Limits(max_signals_per_key=2), (4, 12)),
        (Limits(max_signals=3), (3, 9)),
        (Limits(max_signal_bytes=10, max_value_bytes=10), (3, 9)),
    ]:
        async with make_purgatory(limits=limits) as purgatory:
            for key in "aaabbb":
                await purgatory.fire(key, "x")
            signals = purgatory.statistics().signals
            assert (signals.signals, signals.bytes) == kept


@cases("name", [each.name for each in fields(Limits)])
@cases("value", [0, -1, float("nan"), float("inf")])
def test_a_limit_is_above_zero(name: str, value: float) -> None:
    """Anything else is a ValueError that names it."""
    options: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} is .*: a limit is a finite number above zero"):
        Limits(**options)


def test_what_is_kept_by_default() -> None:
    """As the documentation of the limits says."""
    limits = Limits()
    assert (limits.max_signals_per_key, limits.max_signals) == (1_000, 100_000)
    assert (limits.max_signal_age, limits.max_signal_bytes) == (600, 2**26)
    assert limits.max_value_bytes == 2**16


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
        (lambda: _purgatory(clock=time.time), "clock is <built-in .*: give a clock, such as cur"),
        (lambda: _purgatory(clock=SystemClock), "clock is <class .*: give a clock, such as cur"),
        (lambda: _purgatory(listeners=print), r"listeners is <built-in .*: give .* \[listener\]"),
        (lambda: _limits(max_parked="1"), "max_parked is '1': give a number"),
        (lambda: _limits(max_timeout=True), "max_timeout is True: give a number"),
        (lambda: _settings(max_wait="10s"), "max_wait is '10s': give a number"),
        (lambda: _settings(default_wait=None), "default_wait is None: give a number"),
        (lambda: _install(Purgatory(), FastAPI()), "app is <Purgatory .*: give the application"),
        (lambda: _install(FastAPI(), Purgatory), "purgatory is <class .*Purgatory"),
        (
            lambda: _install(FastAPI(), MemoryJobStore()),
            r"purgatory is <.*: give a Purgatory, .*; a job store goes into Purgatory\(jobs=",
        ),
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


async def test_a_predicate_that_is_none(purgatory: Purgatory) -> None:
    """The value, instead of an error of calling it."""
    with pytest.raises(TypeError, match="until is True: give a function"):
        await purgatory.park("a", until=True, timeout=1)  # type: ignore[arg-type] # on purpose
    assert purgatory.parked == 0


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


@cases(
    "url, shown",
    [
        ("redis://localhost:6379/2", "redis://localhost:6379/2"),
        ("redis://user:secret@host:6379/2", "redis://***@host:6379/2"),
        ("redis://:sec/ret@host", "redis://***@host"),
        ("redis://:sec@ret@host", "redis://***@host"),
        ("redis://:sec?ret@host", "redis://***@"),
        ("redis://host?password=sec@ret", "redis://***@"),
        ("redis://:sec#ret@host", "redis://***@"),
        ("redis://host/0?password=secret", "redis://host/0"),
        ("user:secret@host", "***@host"),
        ("redis:/user:secret@host", "***@host"),
        ("redis://:secret", "redis://***"),
        ("redis://:secret:6379/0", "redis://***"),
        ("postgresql://user:secret/name", "postgresql://***"),
        ("postgresql:user:secret", "***"),
        ("host=db password=secret", "***"),
        ("host=db password=sec@ret", "***"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("sqlite:////a folder/jobs.db", "sqlite:////a folder/jobs.db"),
        ("unix:///tmp/s", "unix:///tmp/s"),
        ("nonsense", "nonsense"),
        ("", ""),
        ("x" * 1_000, "x" * 200),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    """Also one that is none, where nobody can say what is a password of it."""
    assert redacted(url) == shown
