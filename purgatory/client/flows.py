"""The requests of clients, without I/O: generators that yield commands and get the results."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from purgatory.client.requests import (
    BACKOFF,
    UNAVAILABLE,
    Command,
    Emit,
    Failure,
    Reply,
    Request,
    Result,
    Sleep,
    address_of,
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
from purgatory.errors import InvalidTimeoutError
from purgatory.json_value import VALUE, encode_json
from purgatory.retry_policy import RetryPolicy
from purgatory.timer import Clock, SystemClock
from purgatory.timer.clock import Seconds, seconds_of

T = TypeVar("T")
Flow = Generator[Command, Result, T]

# The maximum of a wait at the server, by default, and what a response may take beyond.
MAX_WAIT_S: Final = 55.0
MARGIN_S: Final = 15.0

_NS_PER_SECOND: Final = 1_000_000_000
_NOT_OURS: Final = "the response is not one of a purgatory: check the URL and the prefix"
# As the last segment of a path, also if it is escaped, these are removed: RFC 3986, 6.2.2.
_DOT_SEGMENTS: Final = frozenset({".", ".."})
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
                until_ns = now_ns + int(self.retry_for * _NS_PER_SECOND)
            if now_ns + int(pause * _NS_PER_SECOND) > until_ns:
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
        self, keys: Sequence[str], timeout: Seconds, cursors: Mapping[str, str | None]
    ) -> Flow[WaitResult]:
        """Wait for any of several keys, over as many requests as it takes.

        From now on means from the first reply, which has the cursors: a wait that breaks, such as
        when its server is killed, would begin at a later "now" if it were repeated without them.
        """
        timeout = seconds_of(timeout)
        if not 0 <= timeout < math.inf:
            raise InvalidTimeoutError(f"timeout is {timeout}: give seconds, finite and not below 0")
        positions = {key: cursors.get(key) for key in keys}
        until_ns = self.clock.now_ns() + int(timeout * _NS_PER_SECOND)

        def request() -> Request:
            left = max(0.0, (until_ns - self.clock.now_ns()) / _NS_PER_SECOND)
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
            is_late = self.clock.now_ns() >= until_ns - _NS_PER_SECOND // 10
            is_over = reason == "expired" and is_late and not is_first
            if signals or reason == "cancelled" or is_over or timeout == 0:
                kept = {key: cursor for key, cursor in positions.items() if cursor is not None}
                return WaitResult("fired" if signals else reason, tuple(signals), kept)
            if reason == "drained":
                yield Sleep(found["poll_after_ms"] / 1000)

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
        until_ns = None if timeout is None else now_ns() + int(timeout * _NS_PER_SECOND)
        path = f"/jobs/{quote(job_id, safe='')}"
        job = yield from self.job(job_id)

        def left() -> float:
            return MAX_WAIT_S if until_ns is None else (until_ns - now_ns()) / _NS_PER_SECOND

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
    if isinstance(result, Failure):
        address = address_of(result.error)
        server = "the server" if address is None else f"the server at {address}"
        error = ServerUnavailableError(f"{server} could not be reached: {result.error!r}")
        error.__cause__ = result.error
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
