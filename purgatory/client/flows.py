"""The requests of clients, without I/O: generators that yield commands and get the results."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from purgatory.client.requests import (
    BACKOFF,
    UNAVAILABLE,
    Command,
    Emit,
    Read,
    Reply,
    Request,
    Result,
    Sleep,
    address_of,
    check_keys,
    follow_cursor,
    job_body,
    retry_after_s,
)
from purgatory.client.values import (
    Fired,
    Job,
    RefusedError,
    ServerUnavailableError,
    Signal,
    WaitResult,
    error_of_problem,
)
from purgatory.errors import InvalidTimeoutError, PurgatoryError
from purgatory.json_value import VALUE, decode_document, encode_json
from purgatory.retry_policy import RetryPolicy
from purgatory.timer import Clock, SystemClock
from purgatory.timer.clock import NS_PER_SECOND, Seconds, seconds_of

T = TypeVar("T")
Flow = Generator[Command, Result, T]

# The maximum of a wait at the server, by default, and what a response may take beyond.
MAX_WAIT_S: Final = 55.0
MARGIN_S: Final = 15.0

_NOT_OURS: Final = "the response is not one of a purgatory: check the URL and the prefix"
# As the last segment of a path, also if it is escaped, these are removed: RFC 3986, 6.2.2.
_DOT_SEGMENTS: Final = frozenset({".", ".."})
# Seconds without a byte, of which there is one every 15 s by default: the connection is dead.
SILENCE_S: Final = 60.0
# An event of the largest value, in JSON that escapes each character.
MAX_BUFFER: Final = 16 * 1024 * 1024
_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?!$)")
# What a header can have: another character would be an error of each request.
_IDEMPOTENCY_KEY: Final = re.compile(r"(?=.{1,255}\Z)[!-~]([ -~]*[!-~])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """The flows of one client."""

    retry_for: float = 30.0
    """Seconds for which a request is repeated, from its first failure."""
    backoff: RetryPolicy = BACKOFF
    clock: Clock = field(default_factory=SystemClock)

    def ask(self, request: Request) -> Flow[Reply]:
        """Return the reply to a request that may be repeated; raise what reports its problem.

        Connections that fail, and servers that are not available, are tried again after a pause.
        Raises ServerUnavailableError once that has taken `retry_for` seconds.
        """
        return (yield from self._asked(lambda: request))

    def _asked(self, make: Callable[[], Request]) -> Flow[Reply]:
        """Return the reply to the request of `make`, which is called for each attempt."""
        until_ns: int | None = None
        attempt = 0
        while True:
            reply = yield make()
            if isinstance(reply, Reply) and reply.status not in UNAVAILABLE:
                if reply.status >= 400:
                    raise error_of_problem(reply.status, reply.problem)
                if reply.status != 304 and not reply.is_json:
                    raise RefusedError(reply.status, {"detail": _NOT_OURS})
                return reply
            attempt += 1
            pause = self.pause(attempt, reply)
            now_ns = self.clock.now_ns()
            if until_ns is None:
                # From the first failure: a wait may have taken longer before it broke.
                until_ns = now_ns + int(self.retry_for * NS_PER_SECOND)
            if now_ns + int(pause * NS_PER_SECOND) > until_ns:
                raise unavailable(reply)
            yield Sleep(pause)

    def pause(self, attempt: int, reply: Result) -> float:
        """Return how long to wait after so many failures, in seconds."""
        pause = self.backoff.delay_s(attempt)
        if isinstance(reply, Reply):
            pause = max(pause, retry_after_s(reply))
        return pause

    def fire(self, key: str, value: Any, idempotency_key: str | None) -> Flow[Fired]:
        """Fire a key, once however often the request is repeated; raise InvalidValueError."""
        encode_json(value, VALUE, math.inf)
        is_dots = key in _DOT_SEGMENTS
        reply = yield from self.ask(
            Request(
                method="POST",
                path="/keys" if is_dots else f"/keys/{quote(key, safe='')}",
                headers=_idempotency_header(idempotency_key),
                body=[{"key": key, "value": value}] if is_dots else {"value": value},
            )
        )
        fired = reply.json()["results"][0] if is_dots else reply.json()
        return Fired(fired["cursor"], fired["seq"], fired["completed"], fired.get("jobs", 0))

    def wait(
        self,
        keys: Sequence[str],
        timeout: Seconds,
        cursor: str | Mapping[str, str | None] | None,
    ) -> Flow[WaitResult]:
        """Wait for any of several keys, over as many requests as it takes.

        From now on means from the first reply, which has the cursors: a wait that breaks, such as
        when its server is killed, would begin at a later "now" if it were repeated without them.
        """
        check_keys(keys)
        timeout = seconds_of(timeout)
        if not 0 <= timeout < math.inf:
            raise InvalidTimeoutError(f"timeout is {timeout}: give seconds, finite and not below 0")
        cursors = cursor if isinstance(cursor, Mapping) else dict.fromkeys(keys, cursor)
        positions = {key: cursors.get(key) for key in keys}
        until_ns = self.clock.now_ns() + int(timeout * NS_PER_SECOND)

        def request() -> Request:
            left = max(0.0, (until_ns - self.clock.now_ns()) / NS_PER_SECOND)
            asked = min(left, MAX_WAIT_S) if has_cursors() else 0.0
            return Request(
                method="POST",
                path="/watch",
                body={"keys": dict(positions), "wait": round(asked, 3)},
                read_timeout=asked + MARGIN_S,
            )

        def has_cursors() -> bool:
            return None not in positions.values()

        while True:
            is_first = not has_cursors()
            reply = yield from self._asked(request)
            found = reply.json()
            positions.update(found["cursors"])
            signals = [
                signal_of(key, document)
                for key, entry in found["keys"].items()
                for document in entry["signals"]
            ]
            reason = found["reason"]
            is_late = self.clock.now_ns() >= until_ns - NS_PER_SECOND // 10
            is_over = reason == "expired" and is_late and not is_first
            if signals or reason == "cancelled" or is_over or timeout == 0:
                kept = {key: cursor for key, cursor in positions.items() if cursor is not None}
                return WaitResult("fired" if signals else reason, tuple(signals), kept)
            if reason == "drained":
                yield Sleep(found["poll_after_ms"] / 1000)

    def follow(
        self, keys: Sequence[str], cursor: str | Mapping[str, str | None] | None
    ) -> Flow[None]:
        """Follow keys, as `FollowFlow` does; raise at once for keys or cursors of no stream."""
        check_keys(keys)
        return FollowFlow(self, keys, follow_cursor(keys, cursor)).run()

    def call(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Flow[Reply]:
        """Return the reply of any endpoint."""
        request = Request(method=method, path=path, query=tuple(query.items()), body=body)
        return (yield from self.ask(request))

    def defer(self, handler: str, payload: Any, options: dict[str, Any]) -> Flow[Job]:
        """Add a job, once however often the request is repeated."""
        headers = _idempotency_header(options.pop("idempotency_key", None))
        body = job_body(handler, payload, options)
        request = Request(method="POST", path="/jobs", headers=headers, body=body)
        return job_of((yield from self.ask(request)))

    def job(self, job_id: str, method: str = "GET", suffix: str = "") -> Flow[Job]:
        """Read a job, or cancel or run it, which changes nothing the second time."""
        path = f"/jobs/{quote(job_id, safe='')}{suffix}"
        return job_of((yield from self.ask(Request(method=method, path=path))))

    def jobs(self, filters: Mapping[str, str | None]) -> Flow[None]:
        """Emit the jobs that match the filters that are set, page by page."""
        query = {name: value for name, value in filters.items() if value is not None}
        while True:
            found = (yield from self.call("GET", "/jobs", query, None)).json()
            for each in found["jobs"]:
                yield Emit(Job(each["id"], each["state"], "", each))
            if found["next"] is None:
                return
            query["after"] = parse_qs(urlsplit(found["next"]).query)["after"][0]

    def job_end(self, job_id: str, timeout: Seconds | None) -> Flow[Job]:
        """Return a job once it is done, failed or cancelled; raise TimeoutError."""
        timeout, now_ns = seconds_of(timeout), self.clock.now_ns
        until_ns = None if timeout is None else now_ns() + int(timeout * NS_PER_SECOND)
        path = f"/jobs/{quote(job_id, safe='')}"
        job = yield from self.job(job_id)

        def left() -> float:
            return MAX_WAIT_S if until_ns is None else (until_ns - now_ns()) / NS_PER_SECOND

        def request() -> Request:
            asked = min(max(0.0, left()), MAX_WAIT_S)
            headers = {"If-None-Match": job.etag, "Prefer": f"wait={asked:.3f}"}
            return Request(method="GET", path=path, headers=headers, read_timeout=asked + MARGIN_S)

        while not job.is_final:
            if left() <= 0:
                raise TimeoutError(f"job {job_id} is still {job.state} after {timeout:g} seconds")
            reply = yield from self._asked(request)
            if reply.status == 304:
                # Also at once, of a process that drains.
                yield Sleep(self.backoff.delay_s(1))
                continue
            job = job_of(reply)
        return job


@dataclass(frozen=True, slots=True)
class Event:
    """One event with data."""

    type: str
    data: str
    id: str | None
    retry_ms: int | None


class EventReader:
    """Reads the events of one stream; what is incomplete at its end does not count."""

    def __init__(self) -> None:
        """Begin at the start of a stream."""
        self._buffer = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that `data` completes; raise PurgatoryError if one is too large."""
        self._buffer += data
        if len(self._buffer) > MAX_BUFFER:
            raise PurgatoryError(f"a line of the stream has more than {MAX_BUFFER} bytes")
        *lines, self._buffer = _LINE_END.split(self._buffer)
        for line in lines:
            if line:
                self._read_line(line.decode("utf-8", "replace"))
                continue
            if self._data:
                yield self._event()
            self._fields, self._data = {}, []

    def _read_line(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name:
            self._fields[name] = value

    def _event(self) -> Event:
        retry = self._fields.get("retry", "")
        return Event(
            self._fields.get("event", "message"),
            "\n".join(self._data),
            self._fields.get("id"),
            int(retry) if retry.isascii() and retry.isdigit() else None,
        )


class FollowFlow:
    """Follows keys from a cursor, over any number of streams.

    The cursor is that of the last event, of which each signal has one, so that no signal is missed
    and none comes twice: what a stream has sent only in part does not count.
    """

    def __init__(self, flows: Flows, keys: Sequence[str], cursor: str | None) -> None:
        """Follow `keys` from `cursor`, or from now."""
        self._flows = flows
        self._keys = tuple(keys)
        self._cursor = cursor
        # Failures since the last event.
        self._failures = 0
        self._retry_s: float | None = None
        self._has_ended = False

    def run(self) -> Flow[None]:
        """Yield commands until the stream has ended for good.

        Raises CursorExpiredError with the cursors to go on from, and what refuses the request.
        """
        while not self._has_ended:
            reply = yield self._request()
            if isinstance(reply, Reply) and reply.status == 200:
                yield from self._read(reply)
            elif isinstance(reply, Reply) and reply.status == 204:
                return
            elif isinstance(reply, Reply) and reply.status not in UNAVAILABLE:
                raise error_of_problem(reply.status, reply.problem)
            else:
                self._failures += 1
            if not self._has_ended:
                yield Sleep(self._pause(reply))

    def _request(self) -> Request:
        # Pieces of the stream are read as they are.
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if self._cursor is not None:
            headers["Last-Event-ID"] = self._cursor
        return Request(
            method="GET",
            path="/watch",
            query=[("key", key) for key in self._keys],
            headers=headers,
            read_timeout=SILENCE_S,
            is_stream=True,
        )

    def _read(self, reply: Reply) -> Flow[None]:
        reader = EventReader()
        while True:
            data = yield Read(reply.pieces)
            if not isinstance(data, bytes) or not data:
                if isinstance(data, Exception):
                    self._failures += 1
                return
            for event in reader.feed(data):
                yield from self._take(event)
                if self._has_ended:
                    return

    def _take(self, event: Event) -> Flow[None]:
        document = decode_document(event.data.encode())
        if event.retry_ms is not None:
            self._retry_s = event.retry_ms / 1000
        if event.type == "cancelled":
            self._has_ended = True
            return
        if "status" in document and event.type != "signal":
            self._raise_unless_passing(document)
            self._failures += 1
            return
        self._failures = 0
        if event.id is not None:
            # Before it is given to the caller, who may stop there and go on from its cursor.
            self._cursor = event.id
        if event.type == "signal":
            self._retry_s = None
            yield Emit(signal_of(document["key"], document, event.id))

    def _raise_unless_passing(self, problem: Mapping[str, Any]) -> None:
        status = int(problem["status"])
        if status not in UNAVAILABLE:
            raise error_of_problem(status, problem)

    def _pause(self, reply: Result) -> float:
        """Return the seconds until the next stream: as the server says, or after failures more."""
        asked, self._retry_s = self._retry_s, None
        if self._failures:
            return max(asked or 0.0, self._flows.pause(self._failures, reply))
        # An end without a reason, as of a proxy, is not followed by a rush.
        return self._flows.backoff.delay_s(1) if asked is None else asked


def _idempotency_header(idempotency_key: str | None) -> dict[str, str]:
    """Return the header with the name of a request, a random one unless it is given."""
    if idempotency_key is None:
        idempotency_key = str(uuid.uuid4())
    elif _IDEMPOTENCY_KEY.fullmatch(idempotency_key) is None:
        raise ValueError(
            f"idempotency_key is {idempotency_key[:64]!r}: give 1 to 255 printable ASCII "
            "characters, with no space at either end"
        )
    return {"Idempotency-Key": idempotency_key}


def unavailable(result: Result) -> ServerUnavailableError:
    """Return the error of a server that is not available."""
    if isinstance(result, Exception):
        address = address_of(result)
        server = "the server" if address is None else f"the server at {address}"
        error = ServerUnavailableError(f"{server} could not be reached: {result!r}")
        error.__cause__ = result
        return error
    assert isinstance(result, Reply)
    detail = result.problem.get("detail", "")
    return ServerUnavailableError(f"the server responded with {result.status}: {detail}")


def signal_of(key: str, document: Mapping[str, Any], cursor: str | None = None) -> Signal:
    """Return a signal from its JSON."""
    at = datetime.fromisoformat(document["at"])
    return Signal(key, document["seq"], at, document["value"], cursor or document["cursor"])


def job_of(reply: Reply) -> Job:
    """Return the job in a response."""
    found = reply.json()
    return Job(found["id"], found["state"], reply.headers.get("ETag", ""), found)
