"""HTTP responses, encoded once for any server interface, and problem details (RFC 9457)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import responses as reasons
from typing import Any, Final

from starlette.exceptions import HTTPException

Headers = list[tuple[bytes, bytes]]

CLOSE: Final = b"connection: close\r\n"
# The headers of a JSON response, for HTTP/1.1 and for ASGI.
_JSON: Final = (
    b"%bcontent-type: application/json\r\ncontent-length: %d\r\ncache-control: no-store\r\n"
    b"%b%b\r\n%b"
)
_TYPE: Final = (b"content-type", b"application/json")
_NO_STORE: Final = (b"cache-control", b"no-store")

_LINE_ENDS: Final = frozenset("\r\n\0")


class RawResponse:
    """A status, headers with lower-case names, and a body.

    Headers are kept as lines: one response may go to thousands of connections. Those of every JSON
    response are added when the interface is known.
    """

    __slots__ = ("_headers", "_is_json", "_lines", "body", "status")

    def __init__(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Take headers in ASGI's form."""
        self.status = status
        self.body = body
        self._headers: Headers | None = None
        self._is_json = False
        self._lines = b"".join([name + b": " + value + b"\r\n" for name, value in headers])

    @classmethod
    def from_json(cls, status: int, body: bytes, more: bytes = b"") -> RawResponse:
        """Return a response with an encoded JSON body, not cached; `more` are header lines."""
        # Without the constructor, which would join headers.
        response = cls.__new__(cls)
        response.status = status
        response.body = body
        response._headers = None
        response._is_json = True
        response._lines = more
        return response

    @classmethod
    def empty(cls, status: int, more: bytes = b"") -> RawResponse:
        """Return a response without a body; `more` are header lines."""
        response = cls(status, (_NO_STORE,), b"")
        response.add_lines(more)
        return response

    @classmethod
    def of(cls, status: int, body: bytes, headers: Mapping[str, str]) -> RawResponse:
        """Return a response with `body`, whose length is added to `headers`."""
        length = {"Content-Length": str(len(body))} if body else {}
        return cls(status, encoded({**headers, **length}), body)

    def add_lines(self, lines: bytes) -> None:
        """Add header lines, before the response is sent."""
        self._lines += lines
        self._headers = None

    @property
    def headers(self) -> Headers:
        """The headers in ASGI's form, in a new list: middleware edits it."""
        if self._headers is None:
            self._headers = _pairs(self._lines) if self._lines else []
            if self._is_json:
                length = (b"content-length", b"%d" % len(self.body))
                self._headers[:0] = (_TYPE, length, _NO_STORE)
        return self._headers.copy()

    @property
    def is_last(self) -> bool:
        """True iff the connection closes after it."""
        return CLOSE in self._lines

    def encoded(self, start: bytes, more: bytes = b"") -> bytes:
        """Return `start`, the headers, `more` header lines and the body, in HTTP/1.1's form."""
        if self._is_json:
            return _JSON % (start, len(self.body), self._lines, more, self.body)
        return b"".join((start, self._lines, more, b"\r\n", self.body))


def status_line(status: int) -> bytes:
    """Return the status line of HTTP/1.1; the reason is empty for a status that has none."""
    return f"HTTP/1.1 {status} {reasons.get(status, '')}\r\n".encode("ascii")


def encoded(headers: Mapping[str, str]) -> Headers:
    """Return headers in ASGI's form."""
    return _pairs(header_lines(headers))


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return headers as lines, as `RawResponse.from_json` takes them.

    Raises ValueError for a value that would end its line.
    """
    lines = ""
    for name, value in headers.items():
        if not _LINE_ENDS.isdisjoint(value):
            raise ValueError(f"header {name} is {value[:64]!r}, with the end of a line in it")
        lines += f"{name.lower()}: {value}\r\n"
    return lines.encode("latin-1")


def _pairs(lines: bytes) -> Headers:
    """Return header lines in ASGI's form."""
    parts = [line.partition(b": ") for line in lines.split(b"\r\n")]
    return [(name, value) for name, _, value in parts if name]


# Seconds: what sent them away, such as too many parked requests, passes by itself.
_RETRY_AFTER_S: Final = (1, 5)
# After a drain: long enough for another process to be ready, and spread over clients.
_POLL_AFTER_DRAIN_MS: Final = (100, 2000)


def retry_after() -> dict[str, str]:
    """Return a Retry-After header (RFC 9110, 10.2.3), jittered to spread the retries of clients."""
    return {"Retry-After": str(random.randint(*_RETRY_AFTER_S))}  # noqa: S311 - spreads retries


def poll_after_drain_ms() -> int:
    """Return how long a client whose wait a drain ended is to pause, jittered."""
    return random.randint(*_POLL_AFTER_DRAIN_MS)  # noqa: S311 - spreads reconnects


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem: the last part of its `type`, its status, title and remedy."""

    slug: str
    status: int
    title: str
    remedy: str


# A paragraph for each kind: its slug, status and title, and below them what to do about it.
_KINDS: Final = """\
bad-cursor 400 The cursor is invalid
Use the cursor of an earlier response as it is, 0 for the earliest signal that is kept, or no cursor
to begin now.

bad-json 400 The body is not JSON
Send a JSON document in UTF-8, without NaN or Infinity.

untrusted-host 421 The name of this host is not trusted
Ask by an address or as localhost. Operators: PURGATORY_ALLOWED_HOSTS has the names that are trusted
without tokens.

unauthorized 401 The client has to say who it is
Send what `detail` names: `Authorization: Bearer <token>`, with a token that the operators gave you,
unless they have another way to log in.

forbidden 403 This client may not do this
Ask the operators for what `detail` names.

endpoint-closed 403 This endpoint is closed
Operators: `install(authorize=...)` opens it, to bearer tokens, to whom a dependency of yours
allows, or to anyone.

not-found 404 Nothing exists at this address
The API's documentation has the addresses.

unknown-wait 404 No parked request has this Wait-Id
It may have ended already; nothing needs to be done.

unknown-job 404 The job does not exist
It was never added, or it finished so long ago that it is no longer kept.

method-not-allowed 405 The method is not allowed at this address
The Allow header names the methods that are.

request-timeout 408 The request did not arrive in time
Send the whole request within `limit` seconds.

superseded 409 A newer request has this Wait-Id
Nothing to do if that request is yours: of those with one id, only the newest waits.

duplicate-job 409 A waiting job has this dedupe key
`job` is its address. Send `on_conflict` `replace` or `keep`, or another dedupe key.

job-decided 409 The job's state no longer allows this
`state` and `outcome` have its state; add another job instead.

job-changed 412 The job has changed
Read it and decide again; `etag` is its ETag now.

unknown-handler 422 No handler has this name
`detail` names the known ones. Operators: register the handler with http=True, or, if another
service runs it, call purgatory.handled_elsewhere([...], http=True).

idempotency-conflict 422 The Idempotency-Key was used for another request
Use a new key for a new request, and the same key only for an identical repeat.

cursor-expired 410 Signals since the cursor are no longer kept
Read the state that the key stands for, then continue from `head`, or from `earliest` for the
signals that are still kept.

precondition-failed 412 The key has fired since
Read the signals since that cursor, and decide again; `head` is the key's cursor now.

body-too-large 413 The body is too large
`limit` is the maximum in bytes. Store large values elsewhere and send their address.

unsupported-media-type 415 The type or the encoding of the body is not supported
Send `Content-Type: application/json`, which `curl -d` does only with `-H`, and the body as it is,
without Content-Encoding.

bad-parameter 422 A parameter is invalid
`param` names it and `allowed` describes its valid values; `errors` lists several.

too-many-waits 429 Too many parked requests of this client or for this key
Retry after `Retry-After` seconds, and share one wait within the client.

internal-error 500 The server failed
The server's log has the reason; the request may be retried.

full 503 Too many parked requests in this process
Retry after `Retry-After` seconds; operators can raise the limit or add processes.

receiving-full 503 Too many bytes of incomplete requests in this process
Send the whole request again, at once, after `Retry-After` seconds; operators can raise
`max_incomplete_bytes`.

draining 503 This process is shutting down
Retry after `Retry-After` seconds: another process responds. Cursors stay valid as long as the
history is kept.

jobs-full 503 Too many waiting jobs
Retry after `Retry-After` seconds; operators can raise the limit.

lines-not-read 424 The rest of the batch was not read
Too many lines before were refused. Send the lines from `line` on again, `unread` of them, once it
is clear why.

signals-unavailable 503 The server of the signals is unavailable
Try again after Retry-After, with the same Idempotency-Key if you sent one: what was fired may or
may not be done.

store-unavailable 503 The job store is unavailable
The request may or may not have taken effect. Retry after `Retry-After` seconds; when adding a job,
with the same Idempotency-Key or a dedupe key.

ownership-unavailable 503 The owner of this resource is not known, or changes
The request may or may not have taken effect. Retry after `Retry-After` seconds.

not-open 503 The purgatory is not open
Operators: its lifespan has not run. Install it in the outermost application, not in a mounted one.
"""


def _kind(paragraph: str) -> ProblemKind:
    head, *lines = paragraph.splitlines()
    slug, status, title = head.split(" ", 2)
    return ProblemKind(slug, int(status), title, " ".join(lines))


KINDS: Final = {kind.slug: kind for kind in map(_kind, _KINDS.split("\n\n"))}

MEDIA_TYPE: Final = "application/problem+json"

ALLOWED_KEY: Final = "1 to 256 characters, none of them control"
ALLOWED_VALUE: Final = "JSON of up to 64 KiB by default"


class Problem(HTTPException):
    """An error that the client gets as problem details; your own endpoints may raise it too."""

    def __init__(
        self, slug: str, detail: str, *, headers: dict[str, str] | None = None, **members: Any
    ) -> None:
        """Report the kind `slug`, with a sentence, and members of its own."""
        self.kind = KINDS[slug]
        self.members = members
        super().__init__(self.kind.status, detail, headers or {})

    @classmethod
    def from_status(cls, status: int, detail: Any, headers: dict[str, str]) -> Problem:
        """Return the problem for an error with only a status and a detail.

        A detail that is not text, which FastAPI allows, becomes the member `error`.
        """
        phrase = reasons.get(status, "Error")
        members = {} if isinstance(detail, str) else {"error": detail}
        sentence = detail if isinstance(detail, str) else phrase
        problem = cls("internal-error", sentence, headers=headers, **members)
        # RFC 9457: about:blank says no more than the status.
        problem.kind = ProblemKind("about:blank", status, phrase, "")
        problem.status_code = status
        return problem

    @property
    def status(self) -> int:
        """The HTTP status of the response."""
        return self.kind.status

    def response(self, prefix: str, instance: str) -> RawResponse:
        """Return the response to the request for `instance`; kinds are documented under `prefix`.

        If the router is included under another prefix, or mounted, that precedes `prefix`.
        """
        slug = self.kind.slug
        before, found, _ = instance.partition(f"{prefix}/")
        base = before + prefix if found else prefix
        document = {
            "type": f"{base}/problems/{slug}" if slug in KINDS else slug,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "instance": instance,
            **self.members,
        }
        # ASCII only: what the client sent is quoted, and UTF-8 cannot encode all of it.
        body = json.dumps(document, separators=(",", ":")).encode("ascii")
        headers = {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store", **(self.headers or {})}
        return RawResponse.of(self.kind.status, body, headers)


def release_frames(error: BaseException) -> None:
    """Forget the frames that `error`, and what caused it, have passed; for where it ends.

    A frame refers to all that its callers hold, the body of the request among it, and often to the
    exception as well: such a cycle stays until the garbage collector runs, which may be very late.
    """
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        # One without frames was released before, as it is raised in several requests.
        if one is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            left += (one.__cause__, one.__context__)


def bad_parameter(param: str, detail: str, allowed: str) -> Problem:
    """Return the problem of one invalid parameter."""
    return Problem("bad-parameter", f"{detail}; allowed: {allowed}", param=param, allowed=allowed)


def draining_problem(reason: str = "parks no more requests") -> Problem:
    """Return the problem of a process that is shutting down, and so does not do what was asked."""
    return Problem(
        "draining",
        f"this process is shutting down and {reason}: retry",
        headers={**retry_after(), "Connection": "close"},
    )
