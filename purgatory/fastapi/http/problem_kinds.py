"""The kinds of problems (RFC 9457): status, title and remedy of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem: the last part of its `type`, its status, title and remedy."""

    slug: str
    status: int
    title: str
    remedy: str


KINDS: Final[dict[str, ProblemKind]] = {
    kind.slug: kind
    for kind in (
        ProblemKind(
            "bad-cursor",
            400,
            "The cursor is invalid",
            "Use the cursor of an earlier response as it is, 0 for the earliest signal that is "
            "kept, or no cursor to begin now.",
        ),
        ProblemKind(
            "bad-json",
            400,
            "The body is not JSON",
            "Send a JSON document in UTF-8, without NaN or Infinity.",
        ),
        ProblemKind(
            "untrusted-host",
            421,
            "The name of this host is not trusted",
            "Ask by an address or as localhost. Operators: PURGATORY_ALLOWED_HOSTS has the names "
            "that are trusted without tokens.",
        ),
        ProblemKind(
            "unauthorized",
            401,
            "The client has to say who it is",
            "Send what `detail` names: `Authorization: Bearer <token>`, with a token that the "
            "operators gave you, unless they have another way to log in.",
        ),
        ProblemKind(
            "forbidden",
            403,
            "This client may not do this",
            "Ask the operators for what `detail` names.",
        ),
        ProblemKind(
            "endpoint-closed",
            403,
            "This endpoint is closed",
            "Operators: `install(authorize=...)` opens it, to bearer tokens, to whom a dependency "
            "of yours allows, or to anyone.",
        ),
        ProblemKind(
            "not-found",
            404,
            "Nothing exists at this address",
            "The API's documentation has the addresses.",
        ),
        ProblemKind(
            "unknown-wait",
            404,
            "No parked request has this Wait-Id",
            "It may have ended already; nothing needs to be done.",
        ),
        ProblemKind(
            "unknown-job",
            404,
            "The job does not exist",
            "It was never added, or it finished so long ago that it is no longer kept.",
        ),
        ProblemKind(
            "method-not-allowed",
            405,
            "The method is not allowed at this address",
            "The Allow header names the methods that are.",
        ),
        ProblemKind(
            "request-timeout",
            408,
            "The request did not arrive in time",
            "Send the whole request within `limit` seconds.",
        ),
        ProblemKind(
            "superseded",
            409,
            "A newer request has this Wait-Id",
            "Nothing to do if that request is yours: of those with one id, only the newest waits.",
        ),
        ProblemKind(
            "duplicate-job",
            409,
            "A waiting job has this dedupe key",
            "`job` is its address. Send `on_conflict` `replace` or `keep`, or another dedupe key.",
        ),
        ProblemKind(
            "job-decided",
            409,
            "The job's state no longer allows this",
            "`state` and `outcome` have its state; add another job instead.",
        ),
        ProblemKind(
            "job-changed",
            412,
            "The job has changed",
            "Read it and decide again; `etag` is its ETag now.",
        ),
        ProblemKind(
            "unknown-handler",
            422,
            "No handler has this name",
            "`detail` names the known ones. Operators: register the handler with http=True, or, "
            "if another service runs it, call purgatory.handled_elsewhere([...], http=True).",
        ),
        ProblemKind(
            "idempotency-conflict",
            422,
            "The Idempotency-Key was used for another request",
            "Use a new key for a new request, and the same key only for an identical repeat.",
        ),
        ProblemKind(
            "cursor-expired",
            410,
            "Signals since the cursor are no longer kept",
            "Read the state that the key stands for, then continue from `head`, or from "
            "`earliest` for the signals that are still kept.",
        ),
        ProblemKind(
            "precondition-failed",
            412,
            "The key has fired since",
            "Read the signals since that cursor, and decide again; `head` is the key's cursor now.",
        ),
        ProblemKind(
            "body-too-large",
            413,
            "The body is too large",
            "`limit` is the maximum in bytes. Store large values elsewhere and send their address.",
        ),
        ProblemKind(
            "unsupported-media-type",
            415,
            "The type or the encoding of the body is not supported",
            "Send `Content-Type: application/json`, which `curl -d` does only with `-H`, and the "
            "body as it is, without Content-Encoding.",
        ),
        ProblemKind(
            "bad-parameter",
            422,
            "A parameter is invalid",
            "`param` names it and `allowed` describes its valid values; `errors` lists several.",
        ),
        ProblemKind(
            "too-many-waits",
            429,
            "Too many parked requests of this client or for this key",
            "Retry after `Retry-After` seconds, and share one wait within the client.",
        ),
        ProblemKind(
            "internal-error",
            500,
            "The server failed",
            "The server's log has the reason; the request may be retried.",
        ),
        ProblemKind(
            "full",
            503,
            "Too many parked requests in this process",
            "Retry after `Retry-After` seconds; operators can raise the limit or add processes.",
        ),
        ProblemKind(
            "receiving-full",
            503,
            "Too many bytes of incomplete requests in this process",
            "Send the whole request again, at once, after `Retry-After` seconds; operators can "
            "raise `max_incomplete_bytes`.",
        ),
        ProblemKind(
            "draining",
            503,
            "This process is shutting down",
            "Retry after `Retry-After` seconds: another process responds. Cursors stay valid as "
            "long as the history is kept.",
        ),
        ProblemKind(
            "jobs-full",
            503,
            "Too many waiting jobs",
            "Retry after `Retry-After` seconds; operators can raise the limit.",
        ),
        ProblemKind(
            "lines-not-read",
            424,
            "The rest of the batch was not read",
            "Too many lines before were refused. Send the lines from `line` on again, `unread` of "
            "them, once it is clear why.",
        ),
        ProblemKind(
            "signals-unavailable",
            503,
            "The server of the signals is unavailable",
            "Try again after Retry-After, with the same Idempotency-Key if you sent one: what was "
            "fired may or may not be done.",
        ),
        ProblemKind(
            "store-unavailable",
            503,
            "The job store is unavailable",
            "The request may or may not have taken effect. Retry after `Retry-After` seconds; "
            "when adding a job, with the same Idempotency-Key or a dedupe key.",
        ),
        ProblemKind(
            "ownership-unavailable",
            503,
            "The owner of this resource is not known, or changes",
            "The request may or may not have taken effect. Retry after `Retry-After` seconds.",
        ),
        ProblemKind(
            "not-open",
            503,
            "The purgatory is not open",
            "Operators: its lifespan has not run. Install it in the outermost application, not in "
            "a mounted one.",
        ),
    )
}
