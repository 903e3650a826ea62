"""What clients make of arguments, failures, refusals, drains and events: without I/O or time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.client import (
    AsyncClient,
    Client,
    JobNotFoundError,
    RefusedError,
    ServerUnavailableError,
    Signal,
)
from purgatory.client.flows import MAX_BUFFER, Event, EventReader, Flow, Flows, FollowFlow
from purgatory.client.requests import (
    Emit,
    Read,
    Reply,
    Request,
    Result,
    Sleep,
    base_url,
    follow_cursor,
    job_body,
)
from purgatory.client.values import error_of_problem
from purgatory.errors import BadCursorError, CursorExpiredError, InvalidTimeoutError, PurgatoryError
from purgatory.testing import MockClock
from tests.cases import cases

DOWN = ConnectionError("refused")


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
                assert isinstance(command.value, Signal)
                self.signals.append(command.value)
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


def test_waiting_for_a_job_may_break_late(clock: MockClock, flows: Flows) -> None:
    """In every request anew, however long the job takes."""

    def job(state: str) -> Reply:
        return Reply(200, {"ETag": '"1"'}, b'{"id":"j","state":"%b"}' % state.encode())

    def results() -> Iterator[Result]:
        yield job("running")
        clock.advance(50_000)
        yield DOWN
        yield DOWN
        yield job("done")

    script = Script(clock, results())
    assert script.run(flows.job_end("j", None)).state == "done"
    assert len(script.requests) == 4


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


def test_a_look_takes_one_request(clock: MockClock, flows: Flows) -> None:
    """A wait of no time from now on has the cursors that it asks for."""
    script = Script(clock, [_waited("expired", "c-1")])
    assert script.run(flows.wait(["k"], 0, {})).cursors == {"k": "c-1"}


URL = "http://127.0.0.1:1"


@given(
    job_id=st.text(min_size=1, max_size=64).filter(lambda text: text not in ("run", "retry")),
    suffix=st.sampled_from(["", "/run", "/retry"]),
    prefix=st.sampled_from(["", "/purgatory", "/jobs/purgatory"]),
)
def test_an_unknown_job_is_named_by_its_id(job_id: str, suffix: str, prefix: str) -> None:
    """Whatever the request was to do with it."""
    instance = f"{prefix}/jobs/{quote(job_id, safe='')}{suffix}"
    problem = {"type": "/purgatory/problems/unknown-job", "instance": instance}
    error = error_of_problem(404, problem)
    assert isinstance(error, JobNotFoundError) and error.job_id == job_id


def test_the_cursor_of_a_stream() -> None:
    """One for all keys, also out of a mapping; else the error says so before any request."""
    assert follow_cursor(("a", "b"), None) is None
    assert follow_cursor(("a",), {"a": "c-1", "b": "c-2"}) == "c-1"
    assert follow_cursor(("a", "b"), {"a": "c-1", "b": "c-1"}) == "c-1"
    assert follow_cursor(("a", "b"), {}) is None
    wrong: Any = 7
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match="follow each key by itself"):
            kind(URL).follow("a", "b", cursor={"a": "c-1", "b": "c-2"})
        with pytest.raises(ValueError, match="follow each key by itself"):
            kind(URL).follow("a", "b", cursor={"a": "c-1"})
        with pytest.raises(TypeError, match="give a string"):
            kind(URL).follow("a", cursor=wrong)


def test_a_time_has_a_zone() -> None:
    """A text is a TypeError that says what to pass."""
    text: Any = "2027-01-01"
    with pytest.raises(TypeError, match="datetime with its zone"):
        job_body("note", None, {"at": text})
    with pytest.raises(ValueError, match="zone"):
        job_body("note", None, {"at": datetime(2027, 1, 1)})
    assert job_body("note", None, {"at": datetime(2027, 1, 1, tzinfo=UTC)})["at"]


def test_the_options_of_a_job_are_those_of_python() -> None:
    """As the server takes them: seconds, and a count of keys."""
    options = {"delay": timedelta(seconds=2), "ceiling": 9, "until": 2, "misfire": None}
    body = {"handler": "note", "payload": 1, "delay": 2.0, "ceiling": 9, "until": {"count": 2}}
    assert job_body("note", 1, options) == body


@cases("url", ["localhost", "localhost:80", "http://", "http://a:b", "ftp://a"])
def test_an_address_has_a_host(url: str) -> None:
    """The error names the form."""
    with pytest.raises(ValueError, match="http://host:port"):
        base_url(url, "/purgatory")


@cases("token", ["", "secret\n", "sec ret", "secr\u00e9t", "\r\nX-Other: secret"])
def test_a_token_fits_into_a_header(token: str) -> None:
    """Else each request would fail as if the server were away, and the error would show it."""
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match=r"token is empty, or has .* strip") as caught:
            kind(URL, token=token)
        assert "secr" not in str(caught.value)
        kind(URL, token="secret~+/._-==")


@cases("name", ["", "a\n", " a", "a ", "\u00e9", "x" * 256])
def test_the_name_of_a_request_fits_into_a_header(name: str) -> None:
    """Else it would be repeated as if the server were away, or have another name each time."""
    with Client(URL) as client:
        with pytest.raises(ValueError, match=r"idempotency_key is .*: give 1 to 255 printable"):
            client.fire("k", idempotency_key=name)
        with pytest.raises(ValueError, match=r"idempotency_key is .*: give 1 to 255 printable"):
            client.defer("note", delay=1, idempotency_key=name)


LINES = st.sampled_from(
    [
        "id: 7",
        "id:8",
        "event: signal",
        "data: {}",
        "data:é",
        "data",
        ": comment",
        "retry: 50",
        "x: y",
    ]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def _events(pieces: list[bytes]) -> list[Event]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


@given(st.lists(st.lists(LINES)), ENDS, st.lists(st.integers(0, 200)))
def test_pieces_do_not_matter(blocks: list[list[str]], end: str, cuts: list[int]) -> None:
    """Any way to cut a stream gives the same events."""
    text = "".join(line + end for block in blocks for line in [*block, ""]) + ":" + end
    data = text.encode()
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(bounds)]
    assert _events(pieces) == _events([data])
    assert len(_events([data])) == sum(
        any(line.startswith("data") for line in block) for block in blocks
    )


def test_fields() -> None:
    """As the standard says: one space, several lines of data, no event without data."""
    data = (
        b"id: 1\nevent: a\ndata:  x\ndata: y\nretry: 20\n\nid: 2\n\n:\n\ndata: z\n\ndata: cut off"
    )
    first, second = _events([data])
    assert first == Event("a", " x\ny", "1", 20)
    assert second == Event("message", "z", None, None)


def test_an_endless_line() -> None:
    """The memory of a client is bounded."""
    with pytest.raises(PurgatoryError, match="more than"):
        _events([b"x" * (MAX_BUFFER // 16)] * 20)
