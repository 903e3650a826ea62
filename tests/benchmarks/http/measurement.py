"""One server, measured once."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.benchmarks.http.client import Address, Client
from tests.benchmarks.http.crowd import Crowd
from tests.benchmarks.http.cycles import run_cycles
from tests.benchmarks.http.requests import fire, probe, watch
from tests.benchmarks.http.servers import ServerKind

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
WARM_UP = 50
# Requests that do not wait, one after the other.
POLLS = 1000
# Requests that come before those that came earlier are parked.
PARKED_AT_ONCE = 500
# Those who wait while the cycles go round.
ONLOOKERS = 1000
CYCLE_CLIENTS = 32
# A single client waits so long before it fires: by then it is parked.
PAUSE = 0.002


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures of one round."""

    kb_each: float
    """Kilobytes of resident memory for each parked request, its connection included."""
    park_us: float
    """Microseconds of CPU to accept a connection and park its request."""
    request_us: float
    """The share of it that is the request's: on a connection that was there."""
    poll_us: float
    """Microseconds of CPU for a request that does not wait, on a connection that was there."""
    fan_out_us: float
    """Microseconds of CPU for each answer of the fan-out."""
    fan_out_ms: float
    """Milliseconds from the fire to the last answer."""
    first_ms: float
    """Milliseconds from the fire to the first answer."""
    timeout_us: float
    """Microseconds of CPU for each timeout and its answer; parking it is not in it."""
    timeouts_ms: float
    """Milliseconds by which the last of the timeouts at one instant came late."""
    early_ms: float
    """Milliseconds by which the earliest of them came early; 0 where none did."""
    cycle_us: float
    """Microseconds of CPU for a cycle: two requests, and two answers."""
    cycles_per_second: float
    missed: float
    """Fires in a thousand that found nobody, and were sent again."""
    client_share: float
    """How much of a core the client took, at most: at 1 it was the client that was measured."""
    wake_up_p50_us: float
    wake_up_p99_us: float
    wake_up_32_p50_us: float
    wake_up_32_p99_us: float


def measure(kind: ServerKind, parked: int, seconds: float) -> Measurement:
    """Start a server of that kind and measure it; `seconds` are for the cycles."""
    with _serving(kind) as address:
        control = Client(address, is_blocking=True)
        _warm_up(control, address, kind.watch)
        poll_us = _poll(control, kind.watch)
        before = _until_parked(control, 0)
        crowd = Crowd(address, parked)
        time.sleep(0.3)
        connected = control.ask(probe())
        full = _park(control, crowd, kind.watch)
        request_us = (full["cpu_ns"] - connected["cpu_ns"]) / parked / 1000
        with _ClientShare() as fan_out_share:
            first, last = _fan_out(control, crowd)
        fanned_out = control.ask(probe())
        waiting, timeouts_share, (early, late) = _timeouts(control, crowd, kind.watch, request_us)
        timed_out = control.ask(probe())
        crowd.close()
        _until_parked(control, 0)
        onlookers = Crowd(address, ONLOOKERS)
        onlookers.send(lambda number: watch(kind.watch, f"onlooker-{number}", 50))
        quiet = _until_parked(control, ONLOOKERS)
        with _ClientShare() as cycles_share:
            cycles = run_cycles(address, kind.watch, CYCLE_CLIENTS, seconds)
        gone_round = control.ask(probe())
        single = run_cycles(address, kind.watch, 1, seconds / 2, pause=PAUSE)
        onlookers.close()
    return Measurement(
        kb_each=(full["rss"] - before["rss"]) / parked / 1024,
        park_us=(full["cpu_ns"] - before["cpu_ns"]) / parked / 1000,
        request_us=request_us,
        poll_us=poll_us,
        fan_out_us=(fanned_out["cpu_ns"] - full["cpu_ns"]) / parked / 1000,
        fan_out_ms=last,
        first_ms=first,
        timeout_us=(timed_out["cpu_ns"] - waiting["cpu_ns"]) / parked / 1000,
        timeouts_ms=late,
        early_ms=early,
        cycle_us=(gone_round["cpu_ns"] - quiet["cpu_ns"]) / len(cycles.wake_up) / 1000,
        cycles_per_second=cycles.per_second,
        missed=1000 * cycles.missed / max(1, len(cycles.wake_up)),
        client_share=max(fan_out_share.found, timeouts_share.found, cycles_share.found),
        wake_up_p50_us=_percentile(single.wake_up, 50),
        wake_up_p99_us=_percentile(single.wake_up, 99),
        wake_up_32_p50_us=_percentile(cycles.wake_up, 50),
        wake_up_32_p99_us=_percentile(cycles.wake_up, 99),
    )


class _ClientShare:
    """How much of a core this process took, inside `with`."""

    def __init__(self) -> None:
        self.found = 0.0

    def __enter__(self) -> Self:
        self._cpu_s, self._started_at = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *exc_info: object) -> None:
        took = time.perf_counter() - self._started_at
        self.found = (time.process_time() - self._cpu_s) / took


@contextmanager
def _serving(kind: ServerKind) -> Iterator[Address]:
    # -P: so that the compiled core, which PYTHONPATH names first, is not hidden by the sources.
    flags = ["-P"] if sys.flags.safe_path else []
    command = [sys.executable, *flags, "-m", "tests.benchmarks.http.serve", kind.name]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline().rpartition(" ")[2]))
        yield address
    finally:
        process.kill()
        process.communicate()


def _until_parked(control: Client, count: int) -> Any:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = control.ask(probe())
        if found["parked"] == count:
            return found
        time.sleep(0.02)
    raise TimeoutError(f"{found['parked']} are parked, not {count}")


def _warm_up(control: Client, address: Address, watched: str) -> None:
    crowd = Crowd(address, WARM_UP)
    crowd.send(lambda number: watch(watched, "warm-up", 50))
    _until_parked(control, WARM_UP)
    control.ask(fire("warm-up"))
    crowd.answers(PATIENCE)
    crowd.close()
    time.sleep(0.2)


def _poll(control: Client, watched: str) -> float:
    before = control.ask(probe())
    for _ in range(POLLS):
        control.ask(watch(watched, "poll", 0))
    return float(control.ask(probe())["cpu_ns"] - before["cpu_ns"]) / POLLS / 1000


def _park(control: Client, crowd: Crowd, watched: str) -> Any:
    # A server that has all of them to read at once needs memory for that, and keeps it.
    for start in range(0, len(crowd.members), PARKED_AT_ONCE):
        end = min(start + PARKED_AT_ONCE, len(crowd.members))
        crowd.send(lambda number: watch(watched, "fan-out", 50), range(start, end))
        # To ask once, as a rule: that costs more CPU than many of them.
        time.sleep(0.05)
        found = _until_parked(control, end)
    return found


def _fan_out(control: Client, crowd: Crowd) -> tuple[float, float]:
    """Return when the first and the last answer came, in ms from the fire."""
    started_at = time.perf_counter()
    control.send(fire("fan-out"))
    at = crowd.answers(PATIENCE)
    assert control.answer()["completed"] == len(at)
    return (min(at) - started_at) * 1000, (max(at) - started_at) * 1000


def _timeouts(
    control: Client, crowd: Crowd, watched: str, request_us: float
) -> tuple[Any, _ClientShare, tuple[float, float]]:
    """Return by how much the first answer was early and the last one late, in ms.

    Before that, what the server says when all are parked, and the client's share afterwards.
    """
    # Long enough for all of them to be parked, on a busy machine too. Below 5 s there is no
    # jitter; a server so slow that it takes longer has none anyway.
    due_at = time.perf_counter() + 1.5 + 4 * len(crowd.members) * request_us / 1e6
    expected: list[float] = []

    def request(number: int) -> bytes:
        now = time.perf_counter()
        wait = round(due_at - now, 3)
        expected.append(now + wait)
        return watch(watched, f"timeouts-{number}", wait)

    crowd.send(request)
    waiting = _until_parked(control, len(crowd.members))
    assert time.perf_counter() < due_at, "the first was over before the last was parked"
    time.sleep(max(0.0, due_at - time.perf_counter()))
    with _ClientShare() as share:
        at = crowd.answers(PATIENCE)
    late = [(found - due) * 1000 for found, due in zip(at, expected, strict=True)]
    return waiting, share, (max(0.0, -min(late)), max(late))


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1] * 1e6
