"""The kinds of problems (RFC 9457): status, title and remedy of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem: the last part of its `type`, its status and title, and what to do."""

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
            "The cursor is not one of ours",
            "Use the cursor of an earlier answer as it is, 0 for the earliest signal that is kept, "
            "or none for from now on.",
        ),
        ProblemKind(
            "bad-json",
            400,
            "The body is not JSON",
            "Send a JSON document in UTF-8, without NaN or Infinity.",
        ),
        ProblemKind(
            "unauthorized",
            401,
            "A token is needed",
            "Send `Authorization: Bearer <token>` with a token that the operators gave you.",
        ),
        ProblemKind(
            "forbidden",
            403,
            "The token does not allow this",
            "Ask the operators for a token with the scope that `detail` names.",
        ),
        ProblemKind(
            "not-found",
            404,
            "There is nothing at this address",
            "See the API's documentation for the addresses that exist.",
        ),
        ProblemKind(
            "unknown-wait",
            404,
            "No request is parked under this id",
            "It may have been answered already; nothing needs to be done.",
        ),
        ProblemKind(
            "unknown-job",
            404,
            "There is no such job",
            "It was never added, or it finished so long ago that its history is no longer kept.",
        ),
        ProblemKind(
            "method-not-allowed",
            405,
            "The address does not take this method",
            "The Allow header names the methods that it takes.",
        ),
        ProblemKind(
            "superseded",
            409,
            "Another request took over this Wait-Id",
            "Nothing, if that request was yours: the newest one with an id is the one that waits.",
        ),
        ProblemKind(
            "duplicate-job",
            409,
            "A waiting job has this dedupe key",
            "`job` is its address. Send `on_conflict` replace or keep, or another dedupe key.",
        ),
        ProblemKind(
            "job-decided",
            409,
            "The job's state does not allow this any more",
            "`state` and `outcome` say where it is; add another job instead.",
        ),
        ProblemKind(
            "job-changed",
            412,
            "The job has changed",
            "Read it again and decide anew; `etag` is where it is at.",
        ),
        ProblemKind(
            "unknown-handler",
            422,
            "No handler has this name",
            "`detail` names those that are known. Operators: register it, or name it as one that "
            "another service runs.",
        ),
        ProblemKind(
            "idempotency-conflict",
            422,
            "The Idempotency-Key was used for another request",
            "Use a new key for a new request, and the same one only to repeat one as it was.",
        ),
        ProblemKind(
            "cursor-expired",
            410,
            "Signals since the cursor are no longer kept",
            "Read the state that the key stands for anew, then go on from `head`, or from "
            "`earliest` for what is still kept.",
        ),
        ProblemKind(
            "precondition-failed",
            412,
            "The key has moved on",
            "Read what fired since that cursor, and decide again; `head` is where the key is at.",
        ),
        ProblemKind(
            "body-too-large",
            413,
            "The body is too large",
            "Store what is large elsewhere and fire its address.",
        ),
        ProblemKind(
            "unsupported-media-type",
            415,
            "The body is of a type or an encoding that is not taken",
            "Send `Content-Type: application/json`, with curl `--json` in place of `-d`, and the "
            "body as it is, without Content-Encoding.",
        ),
        ProblemKind(
            "bad-parameter",
            422,
            "A parameter has a value that is not allowed",
            "`param` names it and `allowed` says what it may be.",
        ),
        ProblemKind(
            "too-many-waits",
            429,
            "This client or key has as many requests parked as it may",
            "Wait for `Retry-After` seconds, and share one wait among those who need it.",
        ),
        ProblemKind(
            "internal-error",
            500,
            "Something went wrong here",
            "The server's log has the reason; the request may be tried again.",
        ),
        ProblemKind(
            "full",
            503,
            "This process has as many requests parked as it may",
            "Wait for `Retry-After` seconds; operators can raise the limit or add processes.",
        ),
        ProblemKind(
            "draining",
            503,
            "This process is shutting down",
            "Ask again after `Retry-After` seconds: another process answers. Cursors stay good as "
            "long as the history does.",
        ),
        ProblemKind(
            "jobs-full",
            503,
            "As many jobs wait as may",
            "Ask again after `Retry-After` seconds; operators can raise the limit.",
        ),
        ProblemKind(
            "store-unavailable",
            503,
            "The store of jobs does not work",
            "What was asked may or may not be done. Ask again after `Retry-After` seconds, with "
            "the same Idempotency-Key or a dedupe key where it adds a job.",
        ),
        ProblemKind(
            "not-open",
            503,
            "The purgatory is not open",
            "Operators: its lifespan has not run. Install it in the outermost application, not in "
            "one that is mounted.",
        ),
    )
}
