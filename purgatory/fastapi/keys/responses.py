"""The responses to fires."""

from __future__ import annotations

from purgatory.fastapi.http.problems import Problem
from purgatory.outcome import FireResult
from purgatory.purgatory import Purgatory


def fired_json(fired: FireResult) -> bytes:
    """Return the JSON of what a fire did."""
    return b'{"cursor":"%b","seq":%d,"completed":%d%b%b}' % (
        fired.cursor.encode(),
        fired.seq,
        fired.completed,
        b',"jobs":%d' % fired.jobs if fired.jobs else b"",
        b',"jobs_pending":true' if fired.jobs_pending else b"",
    )


def has_fired(purgatory: Purgatory, key: str) -> Problem:
    """Return the problem of a fire whose If-Match names a cursor from before the last one."""
    signals = purgatory.signals
    head = signals.cursor(signals.last(key))
    return Problem(
        "precondition-failed",
        f"key {key!r} has fired since the cursor of If-Match; its cursor is {head!r} now: "
        "read the state again, then fire with that",
        head=head,
    )
