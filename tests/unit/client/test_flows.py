"""What clients do when servers fail, refuse and drain: without I/O, and without time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from purgatory.client import RefusedError, ServerUnavailableError, Signal
from purgatory.client.flows import Flow, Flows
from purgatory.client.follow import FollowFlow
from purgatory.client.requests import Emit, Failure, Read, Reply, Request, Result, Sleep
from purgatory.errors import BadCursorError, CursorExpiredError, InvalidTimeoutError
from purgatory.jobs import JobNotFoundError
from purgatory.testing import MockClock

DOWN = Failure(ConnectionError("refused"))


class Script:
    """Runs a flow on given results, and notes its commands; sleeping moves the clock."""

    def __init__(self, clock: MockClock, results: Iterable[Result]) -> None:
        self.clock = clock
        self.results = iter(results)
        self.requests: list[Request] = []
        self.slept: list[float] = []
        self.signals: list[Signal] = []

    def run(self, flow: Flow[Any]) -> Any:
        result: Result = None
        while True:
            try:
                command = flow.send(result)
            except StopIteration as finished:
                return finished.value
            result = None
            if isinstance(command, Sleep):
                self.slept.append(command.seconds)
                self.clock.advance(command.seconds * 1000)
            elif isinstance(command, Emit):
                self.signals.append(command.signal)
            else:
                if isinstance(command, Request):
                    self.requests.append(command)
                else:
                    assert isinstance(command, Read)
                result = next(self.results)


@pytest.fixture
def clock() -> MockClock:
    """A clock that only sleeping moves."""
    return MockClock()


@pytest.fixture
def flows(clock: MockClock) -> Flows:
    """The flows of a client with that clock."""
    return Flows(clock=clock)


def _problem(status: int, slug: str, **members: Any) -> Reply:
    document = {"type": f"/purgatory/problems/{slug}", "detail": "no", "status": status, **members}
    return Reply(status, {}, json.dumps(document).encode())


FIRED = Reply(201, {}, b'{"cursor":"c-1","seq":1,"completed":0}')


def test_a_fire_is_repeated_as_one(clock: MockClock, flows: Flows) -> None:
    """With the same Idempotency-Key, after growing pauses and no earlier than Retry-After."""
    busy = Reply(503, {"Retry-After": "4"}, b"")
    script = Script(clock, [DOWN, DOWN, busy, FIRED])
    assert script.run(flows.fire("a/b", 1, None)).cursor == "c-1"
    [key] = {request.headers["Idempotency-Key"] for request in script.requests}
    assert len(key) == 36
    assert {request.path for request in script.requests} == {"/keys/a%2Fb"}
    first, second, third = script.slept
    assert 0.05 <= first <= 0.1 <= second <= 0.2 and third == 4.0


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("inf")])
def test_a_wait_takes_no_wrong_timeout(clock: MockClock, flows: Flows, timeout: float) -> None:
    """It is refused before any request."""
    script = Script(clock, [])
    with pytest.raises(InvalidTimeoutError, match=f"timeout is {timeout}: "):
        script.run(flows.wait(["k"], timeout, {}))
    assert script.requests == []


def test_giving_up(clock: MockClock) -> None:
    """After `retry_for` seconds, with the error of the connection as the cause."""
    script = Script(clock, [DOWN] * 100)
    with pytest.raises(ServerUnavailableError) as caught:
        script.run(Flows(clock=clock, retry_for=5.0).fire("k", None, "mine"))
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert sum(script.slept) <= 5.0


def test_a_long_wait_may_break_late(clock: MockClock, flows: Flows) -> None:
    """A server that dies after 40 of 55 seconds is tried again; what is left is waited for."""

    def results() -> Iterator[Result]:
        clock.advance(40_000)
        yield DOWN
        clock.advance(1_000)
        yield Reply(200, {}, b'{"keys":{},"cursors":{"k":"c-2"},"reason":"cancelled"}')

    script = Script(clock, results())
    assert script.run(flows.wait(["k"], 55.0, {"k": "c-1"})).reason == "cancelled"
    first, second = [request.body["wait"] for request in script.requests]
    assert first == 55.0 and 14.0 < second < 15.0


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (_problem(403, "forbidden"), RefusedError),
        (_problem(422, "bad-parameter"), RefusedError),
        (_problem(400, "bad-cursor"), BadCursorError),
        (_problem(404, "unknown-job", instance="/purgatory/jobs/x"), JobNotFoundError),
        (Reply(500, {}, b"<html>"), RefusedError),
        (Reply(404, {}, b"[]"), RefusedError),
        (Reply(200, {}, b"<html>a page of something else"), RefusedError),
    ],
)
def test_refusals(clock: MockClock, flows: Flows, reply: Reply, error: type[Exception]) -> None:
    """They are not repeated."""
    script = Script(clock, [reply])
    with pytest.raises(error):
        script.run(flows.job("x"))
    assert script.slept == []


def _event(kind: str, event_id: str | None, retry: int | None = None, **data: Any) -> bytes:
    lines = f"event: {kind}\n"
    lines += "" if event_id is None else f"id: {event_id}\n"
    lines += "" if retry is None else f"retry: {retry}\n"
    return f"{lines}data: {json.dumps(data)}\n\n".encode()


def _signal(number: int) -> bytes:
    fields: dict[str, Any] = {
        "key": "k",
        "seq": number,
        "cursor": "x",
        "at": "2026-11-21T15:04:05.678Z",
    }
    return _event("signal", f"c-{number}", value=number, **fields)


OK = Reply(200, {}, b"")
GONE = Reply(204, {}, b"")


def test_following_over_streams(clock: MockClock, flows: Flows) -> None:
    """Each stream resumes after the last whole event, also if nothing has fired yet."""
    cut = _signal(3)[:-1]
    results: list[Result] = [
        OK, _event("begin", "c-0", cursor="c-0"), DOWN,
        OK, _signal(1) + _signal(2) + cut, b"",
        DOWN,
        OK, _signal(3), _event("drained", "c-3", 500, reason="drained"), b"",
        OK, _event("draining", None, 3000, status=503), b"",
        GONE,
    ]  # fmt: skip
    script = Script(clock, results)
    script.run(FollowFlow(flows, ["k"], None).run())
    assert [signal.value for signal in script.signals] == [1, 2, 3]
    assert [signal.cursor for signal in script.signals] == ["c-1", "c-2", "c-3"]
    sent = [request.headers.get("Last-Event-ID") for request in script.requests]
    assert sent == [None, "c-0", "c-2", "c-2", "c-3", "c-3"]
    assert len(script.slept) == 5
    assert script.slept[3:] == [0.5, 3.0]


@pytest.mark.parametrize("is_event", [True, False])
def test_a_cursor_that_is_too_old(clock: MockClock, flows: Flows, is_event: bool) -> None:
    """Raised with the cursors to go on from, whether it came as an event or as a status."""
    problem = _problem(410, "cursor-expired", key="k", earliest="c-5", head="c-9")
    data = _event("cursor-expired", "end", **problem.json())
    results: list[Result] = [OK, data] if is_event else [problem]
    script = Script(clock, results)
    with pytest.raises(CursorExpiredError) as caught:
        script.run(FollowFlow(flows, ["k"], "c-1").run())
    assert (caught.value.earliest, caught.value.head) == ("c-5", "c-9")


def test_a_deleted_key_ends_it(clock: MockClock, flows: Flows) -> None:
    """Without another request."""
    script = Script(clock, [OK, _signal(1) + _event("cancelled", "end", reason="cancelled")])
    script.run(FollowFlow(flows, ["k"], None).run())
    assert len(script.requests) == len(script.signals) == 1


def _waited(reason: str, cursor: str, pause_ms: int = 0) -> Reply:
    document = {"keys": {}, "cursors": {"k": cursor}, "reason": reason}
    return Reply(200, {}, json.dumps({**document, "poll_after_ms": pause_ms}).encode())


def test_a_wait_over_a_drain(clock: MockClock, flows: Flows) -> None:
    """It goes on at another process, with the cursor, for the rest of its time."""
    script = Script(clock, [_waited("drained", "c-1", 400), _waited("cancelled", "c-2")])
    result = script.run(flows.wait(["k"], 25.0, {"k": "c-0"}))
    assert (bool(result), result.reason, result.cursors) == (False, "cancelled", {"k": "c-2"})
    assert script.slept == [0.4]
    bodies = [request.body for request in script.requests]
    assert [body["keys"] for body in bodies] == [{"k": "c-0"}, {"k": "c-1"}]
    assert [body["wait"] for body in bodies] == [25.0, 24.6]


@pytest.mark.parametrize("timeout", [0.05, 25.0])
def test_a_wait_from_now_that_breaks(clock: MockClock, flows: Flows, timeout: float) -> None:
    """It takes cursors first, at once, so that a repeat has what fired in between."""
    results: list[Result] = [DOWN, _waited("expired", "c-1"), DOWN, _waited("cancelled", "c-2")]
    script = Script(clock, results)
    assert script.run(flows.wait(["k"], timeout, {})).cursors == {"k": "c-2"}
    bodies = [request.body for request in script.requests]
    assert [body["keys"]["k"] for body in bodies] == [None, None, "c-1", "c-1"]
    assert [body["wait"] for body in bodies[:2]] == [0, 0]
    assert timeout < 1 or bodies[2]["wait"] > 24
