"""Durations of the Python API: a number of seconds, or a timedelta, wherever one is taken."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, is_typeddict

import purgatory
from purgatory import Limits, Purgatory
from purgatory.event_loop.thread_calls import ThreadCall
from purgatory.fastapi import WaitSettings
from purgatory.fastapi.parking import Park
from purgatory.jobs.callbacks import sign, verify_signature
from purgatory.journal.redis_stream import RedisStream
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.testing import AutojumpEventLoop, current_clock
from purgatory.timer.clock import Seconds
from tests.cases import cases

# Numbers that are no durations, and durations in a unit that their name tells.
NO_DURATIONS = re.compile(r"factor|jitter|random|sample|now|(.*_)?ms")
# Durations by their names, whatever they are annotated with.
DURATIONS = re.compile(r"(.*_)?(timeout|delay|ceiling|wait|age|retention|tolerance|seconds|period)")
# Analysis, whose numbers are shares and factors; durations there end in their unit.
OTHER_ROOMS = re.compile(r"purgatory\.(pipeline|bench|cli)(\..*)?")
# As in asyncio, whose method it implements.
OF_ASYNCIO = {"AutojumpEventLoop.shutdown_default_executor"}
# What users call, and do not import by its name.
UNNAMED = [RedisStream, Park.__call__, ThreadCall.result, ThreadCall.exception]


def callables() -> Iterator[Any]:
    """Yield what users call: functions, classes and their methods."""
    names = [each.name for each in pkgutil.walk_packages(purgatory.__path__, "purgatory.")]
    for name in ["purgatory", *names]:
        if OTHER_ROOMS.fullmatch(name) or name.endswith("__main__"):
            continue
        module = importlib.import_module(name)
        for item in (getattr(module, exported) for exported in getattr(module, "__all__", ())):
            if inspect.isclass(item):
                methods = (getattr(item, each) for each in dir(item))
                # Not those of a framework's class.
                yield from (
                    each for each in methods if "purgatory" in str(getattr(each, "__module__", ""))
                )
                yield item
            elif callable(item):
                yield item
    yield from UNNAMED


def parameters() -> dict[str, str]:
    """Return the annotation of each parameter, by the names of its function and its own."""
    found: dict[str, str] = {}
    for item in callables():
        name = getattr(item, "__qualname__", "_")
        if re.search(r"(^|\.)_(?!_call__)", name) or name in OF_ASYNCIO:
            continue
        if is_typeddict(item):
            found |= {f"{name} {each}": str(of) for each, of in item.__annotations__.items()}
            continue
        try:
            signature = inspect.signature(item)
        except (TypeError, ValueError):
            continue  # of an extension module
        for each in signature.parameters.values():
            found[f"{name} {each.name}"] = str(each.annotation)
    return found


def test_every_duration_may_be_a_timedelta() -> None:
    """A new parameter of seconds is annotated as `Seconds`, or named in its unit."""
    refusing = {
        name: annotation
        for name, annotation in parameters().items()
        if "Seconds" not in annotation
        and not NO_DURATIONS.fullmatch(parameter := name.split()[-1])
        and ("float" in annotation or DURATIONS.fullmatch(parameter))
    }
    assert refusing == {}


async def elapsed(waiting: Awaitable[Any]) -> float:
    """Return the virtual seconds that it takes."""
    began = asyncio.get_running_loop().time()
    with suppress(TimeoutError):
        await waiting
    return asyncio.get_running_loop().time() - began


async def elapsed_in(act: Callable[[Purgatory], Awaitable[Any]]) -> float:
    """Return the virtual seconds that `act` takes with an open purgatory."""
    async with Purgatory(clock=current_clock()) as purgatory:
        return await elapsed(act(purgatory))


def is_valid_for(tolerance: Seconds) -> bool:
    fields: dict[str, Any] = {"method": "POST", "url": "http://a/", "job_id": "j", "body": b""}
    header = sign(SECRET, timestamp=0, **fields)
    return verify_signature(SECRET, header, now=2, tolerance=tolerance, **fields)


def setting(kind: type, name: str) -> Callable[[Any], Any]:
    return lambda each: kind(**{name: each})


REDIS, SECRET = "redis://127.0.0.1:1", "s" * 32
# {parameter: what becomes of its argument}, one of each way in which durations are kept and passed
# on. mypy refuses an argument of `Seconds` where a number is meant.
TAKEN: dict[str, Callable[[Any], Any]] = {
    **{
        f"{kind.__name__} {name}": setting(kind, name)
        for kind, names in (
            (Limits, ("max_timeout", "max_signal_age")),
            (WaitSettings, ("default_wait", "max_wait", "max_stream", "heartbeat")),
            (WaitSettings, ("request_timeout", "response_timeout")),
        )
        for name in names
    },
    "Purgatory.park timeout": lambda each: elapsed_in(lambda p: p.park("a", timeout=each)),
    "verify_signature tolerance": is_valid_for,
    "RedisStream timeout": lambda each: RedisStream(
        REDIS, timeout=each
    )._client.connection_pool.connection_kwargs["socket_timeout"],
    "RedisLeaseStore retention": lambda each: RedisLeaseStore(REDIS, retention=each)._kept_ms,
}


def become(take: Callable[[Any], Any], duration: Seconds) -> object:
    """Return what `take` returns, awaits or raises."""
    try:
        taken = take(duration)
        if inspect.iscoroutine(taken):
            with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
                taken = runner.run(taken)
    except Exception as exc:
        return type(exc), str(exc)
    return taken


@cases("name", sorted(TAKEN))
@cases("seconds", [0.0625, -1.0])
def test_a_timedelta_is_its_seconds(name: str, seconds: float) -> None:
    """Also where it is refused: the same error."""
    taken = become(TAKEN[name], seconds)
    assert become(TAKEN[name], timedelta(seconds=seconds)) == taken
    assert not isinstance(taken, tuple) or taken[0] not in (AttributeError, TypeError)
