"""The columns of jobs that statements select, and the parameters that several share."""

from __future__ import annotations

from sqlalchemy import BigInteger, ColumnElement, Text, bindparam, func, literal, or_

from purgatory.jobs.sql.tables import jobs, quarantined_jobs

ALL = list(jobs.c)
# Payloads may be large, and most steps have no need of them.
WITHOUT_PAYLOAD = [
    literal("null", Text).label("payload_json") if column is jobs.c.payload_json else column
    for column in ALL
]
# For conditions on few rows that another index finds: that by handler would read its whole history,
# and a database without statistics takes it.
UNINDEXED_HANDLER = jobs.c.handler.concat("")
LIMIT = bindparam("limit", type_=BigInteger)
NUMBERS = bindparam("numbers", expanding=True, type_=BigInteger)


def began_before_fire() -> ColumnElement[bool]:
    """Return the condition that the round of a job began before the parameter `fired_ms`."""
    fired_ms = bindparam("fired_ms", type_=BigInteger)
    return or_(jobs.c.round_ms.is_(None), jobs.c.round_ms <= fired_ms)


LAST_QUARANTINED = func.coalesce(func.max(quarantined_jobs.c.number), 0)
"""How many records were ever quarantined: they are numbered without gaps."""
