"""Watching keys without a server: a fault is a failure here, and not a hang."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI

from purgatory import Purgatory, Status
from purgatory.fastapi import ALLOW_ANYONE, install
from purgatory.fastapi.watch.parked_requests import WatchResponses
from purgatory.fastapi.watch.request_parser import WatchManyResponse, WatchResponse, WatchTerms
from purgatory.signals import MemorySignals
from purgatory.testing import MockClock
from tests.cases import cases
from tests.patience import until_in_turns
from tests.unit.exchange import Exchange
from tests.unit.shared_logs import Logs
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture


@pytest.fixture
def app(purgatory: Purgatory) -> FastAPI:
    """An application that has nothing else."""
    app = FastAPI()
    install(app, purgatory, authorize=ALLOW_ANYONE)
    return app


def watch(query: str = "", key: str = "k", **headers: str) -> Exchange:
    """A request that watches one key."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Exchange(f"/purgatory/watch/{key}", named, query_string=query.encode())


def watch_many(document: Any, **headers: str) -> Exchange:
    """A request that watches several keys."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named["Content-Type"] = "application/json"
    body = json.dumps(document).encode()
    return Exchange("/purgatory/watch", named, method="POST", body=[body])


async def test_the_documented_responses_are_those_that_are_sent(
    app: FastAPI, purgatory: Purgatory
) -> None:
    """Neither more nor less."""
    start = purgatory.signals.cursor(purgatory.signals.head())
    await purgatory.fire("order:42:paid", {"by": "card"})
    one = watch(f"cursor={start}&wait=0", "order:42:paid")
    many = watch_many({"keys": {"order:42:paid": start, "order:42:sent": start}, "wait": 0})
    for exchange, model in ((one, WatchResponse), (many, WatchManyResponse)):
        sent = (await exchange.begin(app).reply()).body.decode()
        assert model.model_validate_json(sent, strict=True).model_dump_json() == sent


async def test_a_long_wait_ends_within_its_last_tenth(app: FastAPI) -> None:
    """From 5 seconds on, so that polls do not return in step; a shorter one takes all its time."""
    loop = asyncio.get_running_loop()

    async def waited(wait: float) -> float:
        began_at = loop.time()
        await watch(f"wait={wait}").begin(app).reply()
        return loop.time() - began_at

    long = await asyncio.gather(*(waited(20) for _ in range(50)))
    assert all(18 <= each < 20 for each in long) and max(long) - min(long) > 0.5
    assert {round(await waited(4.9), 2) for _ in range(5)} == {4.9}


@cases("query, headers", [("wait=600", {}), ("", {"Prefer": "wait=3600"})])
async def test_more_than_the_maximum_is_clamped(
    app: FastAPI, purgatory: Purgatory, query: str, headers: dict[str, str]
) -> None:
    """A wait beyond the maximum is taken as the maximum, and the answer says so."""
    exchange = watch(query, **headers).begin(app)
    await until_in_turns(lambda: purgatory.parked == 1)
    await purgatory.fire("k")
    reply = await exchange.reply()
    assert (reply.status, reply.headers["preference-applied"]) == (200, "wait=55")


# Of a signal whose value is one digit.
SIGNAL_BYTES = 120 + 1


def respond(
    signals: MemorySignals,
    positions: dict[str, int],
    *,
    max_bytes: int = 10_000,
    status: Status = Status.FIRED,
    is_single: bool = True,
) -> Any:
    terms = WatchTerms(wait=0, is_single=is_single)
    where = tuple(positions), tuple(positions.values())
    return json.loads(WatchResponses(signals, max_bytes).response(*where, terms, status).body)


@cases("less, told", [(0, [1, 2, 3]), (1, [1, 2])])
def test_signals_of_a_key_that_just_fit(less: int, told: list[int]) -> None:
    """One byte less leaves the last one for the next response."""
    signals = MemorySignals(clock=MockClock())
    for value in (1, 2, 3):
        signals.append("k", value)
    signals.append("other", 4)
    document = respond(signals, {"k": 0}, max_bytes=3 * SIGNAL_BYTES - less)
    assert [signal["value"] for signal in document["signals"]] == told
    assert document["more"] is bool(less)
    assert document["cursor"] == signals.cursor(2 if less else 4)


@cases("less", [0, 1])
def test_signals_of_several_keys_that_just_fit(less: int) -> None:
    """One byte less leaves the last key without a signal, and with the cursor it had."""
    signals = MemorySignals(clock=MockClock())
    for key in "ab":
        signals.append(key, 1)
    document = respond(
        signals, {"a": 0, "b": 0}, max_bytes=2 * SIGNAL_BYTES - less, is_single=False
    )
    entry = document["keys"]["b"]
    assert (len(entry["signals"]), entry["more"]) == (1 - less, bool(less))
    assert document["cursors"] == {"a": signals.cursor(2), "b": signals.cursor(0 if less else 2)}
    assert (len(document["keys"]["a"]["signals"]), document["keys"]["a"]["more"]) == (1, False)


def test_each_signal_has_its_own_time() -> None:
    """To the millisecond, within a second and in the next one."""
    clock = MockClock(start_ms=1_800_000_000_001)
    signals = MemorySignals(clock=clock)
    for ms in (1, 998, 1):
        signals.append("k", None)
        clock.advance(ms)
    signals.append("k", None)
    document = respond(signals, {"k": 0})
    assert [signal["at"] for signal in document["signals"]] == [
        "2027-01-15T08:00:00.001Z",
        "2027-01-15T08:00:00.002Z",
        "2027-01-15T08:00:01.000Z",
        "2027-01-15T08:00:01.001Z",
    ]


@cases("at_ms, at", [(7, "1970-01-01T00:00:00.007Z"), (-1, "1969-12-31T23:59:59.999Z")])
def test_a_clock_that_was_never_set_has_times_too(at_ms: int, at: str) -> None:
    """Around the beginning of the clock's time, in the first response."""
    signals = MemorySignals(clock=MockClock(at_ms))
    signals.append("k", None)
    (signal,) = respond(signals, {"k": 0})["signals"]
    assert signal["at"] == at


@cases("is_lost", [True, False])
def test_a_drained_wait_keeps_its_cursor_if_signals_were_lost(*, is_lost: bool) -> None:
    """So that the next wait responds 410; from behind the loss it has read what there is."""
    signals = MemorySignals(clock=MockClock())
    signals.append("k", 1)
    signals.drop("k")
    signals.append("other", 1)
    position = signals.earliest("k") - is_lost
    document = respond(signals, {"k": position}, status=Status.DRAINED)
    expected = signals.cursor(position if is_lost else signals.head())
    assert (document["cursor"], document["signals"]) == (expected, [])


@cases("status", [Status.EXPIRED, Status.DRAINED, Status.CANCELLED])
@cases("has_signals", [True, False])
def test_only_a_conditional_wait_that_expired_is_not_modified(
    status: Status, *, has_signals: bool
) -> None:
    """Any other end is news, which a body tells; and so are signals."""
    signals = MemorySignals(clock=MockClock())
    signals.append("k", 1)
    terms = WatchTerms(wait=0, is_conditional=True)
    responses = WatchResponses(signals, 10_000)
    response = responses.response(("k",), (0 if has_signals else 1,), terms, status)
    if status is Status.EXPIRED and not has_signals:
        assert (response.status, response.body) == (304, b"")
    else:
        document = json.loads(response.body)
        assert (response.status, document["reason"]) == (200, status.value)
        assert len(document["signals"]) == has_signals


WAIT_ID = "0b1d6c5e-7d0c-4a53-9b0e-2d1c9f0a1b2c"


class Worker(NamedTuple):
    """One of the processes, on the clock of both."""

    app: FastAPI
    purgatory: Purgatory
    logs: Logs

    async def parked(self) -> Exchange:
        """Park a request under the id."""
        exchange = Exchange("/purgatory/watch/k", {"Wait-Id": WAIT_ID}, query_string=b"wait=50")
        exchange.begin(self.app)
        await until_in_turns(lambda: self.purgatory.parked == 1)
        return exchange

    def hear(self, other: Worker) -> None:
        """Receive what the other process has told since."""
        told, other.logs.peers.told[:] = other.logs.peers.told[:], []
        for question, argument in told:
            self.logs.peers.answers[question](argument)


@pytest.fixture
async def workers(make_purgatory: Callable[..., Purgatory]) -> AsyncIterator[list[Worker]]:
    """Two processes."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(2):
            app, logs = FastAPI(), Logs()
            purgatory = await stack.enter_async_context(make_purgatory(signals=logs))
            install(app, purgatory, authorize=ALLOW_ANYONE)
            found.append(Worker(app, purgatory, logs))
        yield found


@pytest.mark.parametrize("wait", [0, 50])
async def test_no_request_waits_before_each_log_was_read(workers: list[Worker], wait: int) -> None:
    """What it would wait for may have fired: 503, and the client tries again."""
    worker = workers[0]
    worker.logs.forget_load("of any log")
    exchange = Exchange("/purgatory/watch/k", query_string=b"wait=%d" % wait).begin(worker.app)
    reply = await exchange.reply()
    assert (reply.status, reply.json()["type"]) == (503, "/purgatory/problems/signals-unavailable")
    assert worker.purgatory.parked == 0


async def test_requests_of_the_same_millisecond_do_not_end_each_other(
    workers: list[Worker],
) -> None:
    """None of them is the later one, and one has to remain."""
    first, second = workers
    waiting = [await worker.parked() for worker in workers]
    first.hear(second)
    second.hear(first)
    assert [worker.purgatory.parked for worker in workers] == [1, 1]
    for worker, exchange in zip(workers, waiting, strict=True):
        await worker.purgatory.drain()
        assert (await exchange.reply()).status == 200
