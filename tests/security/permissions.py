"""Which scopes allow each request, by hand: what OpenAPI has and this table lacks fails a test.

A request is about something of a victim, which exists or does not. A client whose scope does not
allow it must not be able to tell which, and neither must one that only reaches what is its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from uuid import uuid4

SECRET: Final = "hunter2"
"""In every value of the victim's."""
KEY: Final = "victim:paid"
OWN_KEY: Final = "low:paid"
JSON: Final = "application/json"
JSON_LINES: Final = "application/jsonl"
EVENTS: Final = {"Accept": "text/event-stream"}

# The attackers, each by the scopes of its token.
ANONYMOUS: Final = ("no token", "unknown token")
_WAIT: Final = frozenset({"wait:victim:*", "wait:victim:paid", "wait:*", "defer wait:victim:*"})
_OTHER_WAIT: Final = frozenset({"wait:low:*", "wait:victim:pai", "wait:paid"})
_FIRE: Final = frozenset({"fire:victim:*", "fire:victim:paid", "fire:*"})
_OTHER_FIRE: Final = frozenset({"fire:low:*", "fire:victim:pai"})
_DEFER: Final = frozenset({"defer", "defer:victim-*", "defer:low-*", "defer wait:victim:*"})
_OPERATORS: Final = frozenset({"observe", "operate", "*"})
SCOPES: Final = tuple(sorted(_OPERATORS | _WAIT | _OTHER_WAIT | _FIRE | _OTHER_FIRE | _DEFER))

_EVERYTHING: Final = frozenset({"*"})
NOBODY: Final[frozenset[str]] = frozenset()
EVERYONE: Final = frozenset({*SCOPES, *ANONYMOUS})
WAIT: Final = _WAIT | _EVERYTHING
ANY_WAIT: Final = WAIT | _OTHER_WAIT
FIRE: Final = _FIRE | _EVERYTHING
OWN_FIRE: Final = frozenset({"fire:low:*", "fire:*", "*"})
OPERATE: Final = frozenset({"operate", "*"})
READ: Final = _OPERATORS
DEFER: Final = _DEFER | _EVERYTHING
DEFER_AND_WAIT: Final = frozenset({"defer wait:victim:*", "*"})
OF_VICTIMS_PREFIX: Final = DEFER - {"defer:low-*"}

Thing = Literal["nothing", "key", "wait", "job", "shared job", "fired job", "failed job", "handler"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about: of the victim's, or with ids that nothing has."""

    job: str = field(default_factory=lambda: uuid4().hex)
    wait: str = field(default_factory=lambda: str(uuid4()))
    idempotency_key: str = field(default_factory=lambda: str(uuid4()))
    dedupe_key: str = field(default_factory=lambda: f"victim-{uuid4()}")
    handler: str = "chargf"
    """Of the length of one that exists, and is closed to HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of request to an operation of OpenAPI, and who may make it."""

    operation: str
    name: str
    """What it does, as docs/security.md says it."""
    thing: Thing
    allowed: frozenset[str]
    sees: frozenset[str] = NOBODY
    """Those whose response depends on the victim's thing; the others cannot tell if it exists."""
    changes: frozenset[str] = NOBODY
    """Those whose request changes what is the victim's."""
    shown: frozenset[str] | None = None
    """Those who are shown a value of the victim's; None: all who see."""
    key: str = KEY
    query: str = ""
    headers: Callable[[Target], Mapping[str, str]] = lambda target: {}
    body: Callable[[Target], Any] | None = None
    media_type: str = JSON
    is_documented: bool = True
    """False iff it is a variant of a row of docs/security.md."""

    @property
    def content(self) -> Callable[[Target], bytes]:
        """The body as it is sent."""
        make = self.body
        if make is None:
            return lambda target: b""
        if self.media_type == JSON_LINES:
            return lambda target: b"".join(
                json.dumps(line).encode() + b"\n" for line in make(target)
            )
        return lambda target: json.dumps(make(target)).encode()


def _job(**changes: Any) -> dict[str, Any]:
    return {"handler": "note", "delay": 900.0, **changes}


def _added(
    name: str,
    thing: Thing,
    allowed: frozenset[str],
    body: Callable[[Target], dict[str, Any]],
    **more: Any,
) -> tuple[Case, Case]:
    """Return the case of one job, and that of a line of a batch."""
    one = Case(operation="add_job", name=name, thing=thing, allowed=allowed, body=body, **more)
    line = Case(
        operation="add_jobs",
        name=name,
        thing=thing,
        allowed=allowed,
        body=lambda target: [body(target)],
        media_type=JSON_LINES,
        **{**more, "is_documented": False},
    )
    return one, line


def _of_job(operation: str, name: str, **more: Any) -> Case:
    return Case(operation=operation, name=name, allowed=DEFER, sees=DEFER, **more)


CASES: Final = (
    Case(
        operation="watch_key",
        name="watch a key, read its signals",
        thing="key",
        allowed=WAIT,
        sees=WAIT,
        query="?wait=0&cursor=0",
    ),
    Case(
        operation="watch_key",
        name="watch under the Wait-Id of another token",
        thing="wait",
        allowed=WAIT,
        headers=lambda target: {"Wait-Id": target.wait},
        query="?wait=0",
        is_documented=False,
    ),
    Case(
        operation="watch_key",
        name="follow a key",
        thing="key",
        allowed=WAIT,
        sees=WAIT,
        query="?cursor=0&wait=0",
        headers=lambda target: EVENTS,
    ),
    Case(
        operation="follow_keys",
        name="follow several keys",
        thing="key",
        allowed=WAIT,
        sees=WAIT,
        query=f"?key={KEY}&cursor=0&wait=0",
    ),
    Case(
        operation="follow_keys",
        name="follow one's own key and another",
        thing="key",
        allowed=frozenset({"wait:*", "*"}),
        sees=frozenset({"wait:*", "*"}),
        query=f"?key={OWN_KEY}&key={KEY}&cursor=0&wait=0",
        is_documented=False,
    ),
    Case(
        operation="watch_keys",
        name="watch several keys",
        thing="key",
        allowed=WAIT,
        sees=WAIT,
        body=lambda target: {"keys": {KEY: "0"}, "wait": 0.0},
    ),
    Case(
        operation="watch_keys",
        name="watch one's own key and another",
        thing="key",
        allowed=frozenset({"wait:*", "*"}),
        sees=frozenset({"wait:*", "*"}),
        body=lambda target: {"keys": {OWN_KEY: None, KEY: "0"}, "wait": 0.0},
        is_documented=False,
    ),
    Case(
        operation="cancel_wait",
        name="end a wait of one's own",
        thing="wait",
        allowed=ANY_WAIT,
    ),
    Case(
        operation="describe_key",
        name="read the position of a key",
        thing="key",
        allowed=WAIT,
        sees=WAIT,
    ),
    Case(
        operation="fire_key",
        name="fire a key",
        thing="wait",
        allowed=FIRE,
        sees=FIRE,
        changes=FIRE,
        body=lambda target: {"value": 1},
    ),
    Case(
        operation="fire_key",
        name="fire one's own key with the Idempotency-Key of another token",
        thing="key",
        allowed=OWN_FIRE,
        key=OWN_KEY,
        headers=lambda target: {"Idempotency-Key": target.idempotency_key},
        body=lambda target: {"value": 1},
        is_documented=False,
    ),
    Case(
        operation="fire_keys",
        name="fire several keys",
        thing="wait",
        allowed=FIRE,
        sees=FIRE,
        changes=FIRE,
        body=lambda target: [{"key": KEY, "value": 1}],
    ),
    Case(
        operation="fire_keys",
        name="fire one's own key and another",
        thing="wait",
        allowed=frozenset({"fire:*", "*"}),
        sees=frozenset({"fire:*", "*"}),
        changes=frozenset({"fire:*", "*"}),
        body=lambda target: [{"key": OWN_KEY}, {"key": KEY}],
        is_documented=False,
    ),
    Case(
        operation="drop_key",
        name="drop a key: end its waits, delete its signals",
        thing="wait",
        allowed=OPERATE,
        sees=OPERATE,
        changes=OPERATE,
    ),
    Case(
        operation="list_keys",
        name="list watched keys",
        thing="wait",
        allowed=READ,
        sees=READ,
    ),
    *_added("add a job", "job", DEFER, lambda target: _job()),
    *_added(
        "add a job that waits on a key",
        "job",
        DEFER_AND_WAIT,
        lambda target: _job(keys=[KEY]),
    ),
    *(
        case
        for on_conflict in ("error", "keep", "replace")
        for case in _added(
            f"add a job with a dedupe key ({on_conflict})",
            "job",
            OF_VICTIMS_PREFIX,
            lambda target, choice=on_conflict: _job(  # type: ignore[misc] # a default binds it
                dedupe_key=target.dedupe_key, on_conflict=choice
            ),
            is_documented=False,
        )
    ),
    *(
        case
        for on_conflict in ("error", "keep", "replace")
        for case in _added(
            f"add a job with a dedupe key that others share ({on_conflict})",
            "shared job",
            OF_VICTIMS_PREFIX,
            lambda target, choice=on_conflict: _job(  # type: ignore[misc] # as above
                dedupe_key=target.dedupe_key, on_conflict=choice
            ),
            sees=frozenset({"defer:victim-*", "*"}),
            changes=frozenset({"defer:victim-*", "*"} if on_conflict == "replace" else ()),
            is_documented=False,
        )
    ),
    *_added(
        "add a job for a handler that is closed to HTTP",
        "handler",
        DEFER,
        lambda target: _job(handler=target.handler),
        is_documented=False,
    ),
    Case(
        operation="add_job",
        name="add a job with the Idempotency-Key of another token",
        thing="job",
        allowed=DEFER,
        headers=lambda target: {"Idempotency-Key": target.idempotency_key},
        body=lambda target: _job(),
        is_documented=False,
    ),
    _of_job("get_job", "read a job by its id", thing="job"),
    _of_job(
        "get_job",
        "read the value that fired a job",
        thing="fired job",
        shown=DEFER_AND_WAIT,
        is_documented=False,
    ),
    _of_job(
        "get_job",
        "wait for a change of a job",
        thing="job",
        headers=lambda target: {"If-None-Match": '"7"', "Prefer": "wait=0"},
        is_documented=False,
    ),
    _of_job(
        "reschedule_job",
        "move a job by its id",
        thing="job",
        changes=DEFER,
        body=lambda target: {"delay": 800.0},
    ),
    _of_job(
        "reschedule_job",
        "move a job that has another ETag",
        thing="job",
        headers=lambda target: {"If-Match": '"7"'},
        body=lambda target: {"delay": 800.0},
        is_documented=False,
    ),
    _of_job("cancel_job", "cancel a job by its id", thing="job", changes=DEFER),
    _of_job("run_job", "run a job by its id", thing="job", changes=DEFER),
    Case(
        operation="retry_job",
        name="retry a failed job by its id",
        thing="failed job",
        allowed=OPERATE,
        sees=OPERATE,
        changes=OPERATE,
    ),
    Case(
        operation="retry_jobs",
        name="retry failed jobs",
        thing="failed job",
        query="?all=true",
        allowed=OPERATE,
        sees=OPERATE,
        changes=OPERATE,
    ),
    Case(
        operation="paused_handlers",
        name="list paused handlers",
        thing="job",
        allowed=READ,
    ),
    Case(
        operation="pause_handler",
        name="pause a handler, or all",
        thing="job",
        allowed=OPERATE,
        # Of no job here: its effect would outlast the test.
        query="?handler=none",
    ),
    Case(
        operation="resume_handler",
        name="resume a handler, or all",
        thing="job",
        allowed=OPERATE,
        query="?handler=none",
    ),
    Case(
        operation="list_jobs",
        name="list jobs, without payloads",
        thing="job",
        allowed=READ,
        sees=READ,
    ),
    Case(
        operation="list_jobs",
        name="list the jobs of a key",
        thing="job",
        allowed=READ,
        sees=READ,
        query=f"?key={KEY}",
        is_documented=False,
    ),
    Case(
        operation="statistics",
        name="read the statistics",
        thing="wait",
        allowed=READ,
        sees=READ,
    ),
    Case(
        operation="list_waits",
        name="list waits",
        thing="wait",
        allowed=READ,
        sees=READ,
    ),
    Case(
        operation="javascript",
        name="read the JavaScript client",
        thing="nothing",
        allowed=EVERYONE,
    ),
    Case(
        operation="dashboard_snapshot",
        name="read the statistics of the dashboard",
        thing="wait",
        allowed=READ,
        sees=READ,
    ),
    Case(
        operation="dashboard_actions",
        name="drop a key from the dashboard",
        thing="wait",
        allowed=OPERATE,
        sees=OPERATE,
        changes=OPERATE,
        body=lambda target: {"action": "drop-key", "targets": [KEY]},
    ),
    Case(
        operation="dashboard_actions",
        name="fire a key, cancel or run a job from the dashboard",
        thing="wait",
        allowed=_EVERYTHING,
        sees=_EVERYTHING,
        changes=_EVERYTHING,
        body=lambda target: {"action": "fire", "targets": [KEY]},
    ),
    Case(
        operation="dashboard_actions",
        name="cancel a job from the dashboard",
        thing="job",
        allowed=_EVERYTHING,
        sees=_EVERYTHING,
        changes=_EVERYTHING,
        body=lambda target: {"action": "cancel-job", "targets": [target.job]},
        is_documented=False,
    ),
    Case(operation="dashboard", name="load the page", thing="nothing", allowed=EVERYONE),
    Case(
        operation="dashboard_file",
        name="load a file of the page",
        thing="nothing",
        allowed=EVERYONE,
    ),
    Case(
        operation="problem",
        name="read about an error",
        thing="nothing",
        allowed=EVERYONE,
    ),
    Case(operation="healthz", name="ask for liveness", thing="nothing", allowed=EVERYONE),
    Case(operation="readyz", name="ask for readiness", thing="nothing", allowed=EVERYONE),
)
