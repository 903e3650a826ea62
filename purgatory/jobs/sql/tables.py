"""The tables of delayed jobs, which a test compares with `migrations/`, and jobs as rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    text,
)

from purgatory.job_errors import CorruptJobError
from purgatory.jobs.model.job import (
    BlockedBy,
    Job,
    JobOutcome,
    JobState,
    Misfire,
    OnFire,
    check_stored,
    job_with,
    shown_dedupe_key,
)
from purgatory.json_value import decode_json

metadata = MetaData()

# Ids and keys are compared by bytes, in Python and in every database.
_BYTES = Text().with_variant(Text(collation="C"), "postgresql")

jobs = Table(
    "purgatory_jobs",
    metadata,
    Column("id", _BYTES, primary_key=True),
    Column("handler", _BYTES, nullable=False),
    Column("payload_json", Text, nullable=False),
    Column("deadline_ms", BigInteger, nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("keys_json", Text, nullable=False),
    Column("on_fire", Text, nullable=False),
    Column("dedupe_key", _BYTES),
    Column("concurrency_key", _BYTES),
    Column("owner", Text),
    Column("max_attempts", BigInteger, nullable=False),
    Column("misfire", Text, nullable=False),
    Column("ceiling_ms", BigInteger),
    Column("state", _BYTES, nullable=False),
    Column("outcome", Text),
    Column("fired_key", Text),
    Column("fired_json", Text),
    Column("needed", BigInteger, nullable=False, server_default="1"),
    Column("fired_before_json", Text),
    Column("attempt", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("round", BigInteger, nullable=False, server_default="0"),
    Column("round_ms", BigInteger),
    Column("worker", Text),
    Column("lease_until_ms", BigInteger, nullable=False),
    Column("leased_ms", BigInteger, nullable=False, server_default="0"),
    Column("blocked_by", Text),
    Column("slot_ms", BigInteger),
    Column("lateness_ms", BigInteger),
    Column("finished_ms", BigInteger),
    Column("error", Text),
    Column("version", BigInteger, nullable=False),
    Column("traceparent", Text),
    # A corrupt record, too, is counted under one of them. Not by IN, for which SQLite makes a table
    # for each row that is written.
    CheckConstraint(
        " OR ".join(f"state = '{state}'" for state in JobState), name="ck_purgatory_jobs_state"
    ),
)

# The conditions of partial indexes. Queries must repeat them literally, so that a generic plan,
# made without the parameters, can use the index. A job is undecided iff it has no outcome, and
# final iff it has finished.
IS_FREE = text("finished_ms IS NULL AND lease_until_ms = 0 AND blocked_by IS NULL")

IS_LEASED = text("finished_ms IS NULL AND lease_until_ms > 0")
HAS_DEDUPE_KEY = text("dedupe_key IS NOT NULL AND outcome IS NULL")
IS_FINISHED = text("finished_ms IS NOT NULL")
HAS_SLOT = text("slot_ms IS NOT NULL")
IS_BLOCKED = jobs.c.blocked_by.is_not(None)
IS_BLOCKED_BY_HANDLER = text(f"blocked_by = '{BlockedBy.MAX_RUNNING}'")
IS_BLOCKED_BY_KEY = text(f"blocked_by = '{BlockedBy.MAX_RUNNING_PER_KEY}'")
IS_BLOCKED_BY_PAUSE = text(f"blocked_by = '{BlockedBy.PAUSED}'")


def _partial(name: str, *columns: Column[object], where: object, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


# Jobs that can be claimed, of each handler in the order of claims: a process claims past any number
# of jobs that it cannot run. And jobs that can be claimed when their leases expire: in a common
# index, every claim would have to skip the leased jobs.
_partial("ix_purgatory_jobs_free", jobs.c.handler, jobs.c.due_ms, jobs.c.id, where=IS_FREE)

_partial("ix_purgatory_jobs_leased", jobs.c.lease_until_ms, where=IS_LEASED)
_partial("ix_purgatory_jobs_dedupe_key", jobs.c.dedupe_key, where=HAS_DEDUPE_KEY, unique=True)
_partial("ix_purgatory_jobs_finished", jobs.c.finished_ms, jobs.c.id, where=IS_FINISHED)
# Jobs that hold a slot, and those that wait for one, of their handler or of their concurrency key:
# rows of bounded handlers only.
_partial("ix_purgatory_jobs_slots", jobs.c.handler, jobs.c.concurrency_key, where=HAS_SLOT)
_partial(
    "ix_purgatory_jobs_blocked_by_handler",
    jobs.c.handler,
    jobs.c.due_ms,
    jobs.c.id,
    where=IS_BLOCKED_BY_HANDLER,
)
_partial(
    "ix_purgatory_jobs_blocked_by_key",
    jobs.c.handler,
    jobs.c.concurrency_key,
    jobs.c.due_ms,
    jobs.c.id,
    where=IS_BLOCKED_BY_KEY,
)
# Jobs that are due and wait for a slot or for the end of a pause, for lists.
_partial("ix_purgatory_jobs_blocked", jobs.c.id, where=IS_BLOCKED)
_partial("ix_purgatory_jobs_blocked_by_pause", jobs.c.id, where=IS_BLOCKED_BY_PAUSE)
Index("ix_purgatory_jobs_state", jobs.c.state, jobs.c.id)
Index("ix_purgatory_jobs_handler", jobs.c.handler, jobs.c.id)

# The concurrency key of a job is one of its keys, too, for lists: never open, and told from watch
# keys by a character that these cannot have.
CONCURRENCY_MARK = "\x01"

job_keys = Table(
    "purgatory_job_keys",
    metadata,
    Column("key", _BYTES, primary_key=True),
    Column("job_id", _BYTES, primary_key=True),
    # False once the key has fired or the job is decided: a fire must not scan a key's past jobs.
    Column("is_open", Boolean, nullable=False),
)
IS_OPEN = text("is_open")
_partial("ix_purgatory_job_keys_open", job_keys.c.key, job_keys.c.job_id, where=IS_OPEN)
Index("ix_purgatory_job_keys_job_id", job_keys.c.job_id)

# Requests that have added, replaced or kept a job: their repeats change nothing.
job_requests = Table(
    "purgatory_job_requests",
    metadata,
    Column("name", _BYTES, primary_key=True),
    Column("job_id", _BYTES, nullable=False),
    Column("status", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("noted_ms", BigInteger, nullable=False),
)
# In the order of time, to forget the oldest of too many for one job.
Index("ix_purgatory_job_requests_job_id", job_requests.c.job_id, job_requests.c.noted_ms)

# The number of jobs in each state is the sum of all rows. Each store object updates its own row, so
# that processes do not wait for each other.
job_counts = Table(
    "purgatory_job_counts",
    metadata,
    Column("shard", SmallInteger, primary_key=True, autoincrement=False),
    Column("waiting", BigInteger, nullable=False),
    Column("running", BigInteger, nullable=False),
    Column("done", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("cancelled", BigInteger, nullable=False),
)

# SQLite generates values only in columns of type INTEGER.
_NUMBER = BigInteger().with_variant(Integer(), "sqlite")

# Fires of the application's own transactions, until a relay has fired them.
outbox = Table(
    "purgatory_outbox",
    metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("origin", _BYTES, nullable=False),
    Column("key", _BYTES, nullable=False),
    Column("value_json", Text, nullable=False),
    Column("owner", Text),
    Column("created_ms", BigInteger, nullable=False),
    Column("traceparent", Text),
    # A number that was used names its fire in the log of signals, and is not used again.
    sqlite_autoincrement=True,
)

# "" stands for all.
paused_handlers = Table(
    "purgatory_paused_handlers", metadata, Column("name", _BYTES, primary_key=True)
)

quarantined_jobs = Table(
    "purgatory_quarantined_jobs",
    metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("id", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("record", Text, nullable=False),
    Column("quarantined_ms", BigInteger, nullable=False),
)

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_NAMES = tuple(name for name in Job.__slots__ if name not in ("keys", "fired_before"))
_values_of = attrgetter(*_NAMES)
# Each raises an error of its own for what is none of its values.
_CHOICES = ("state", "outcome", "on_fire", "misfire")
# Exact types, which are fast to check for each value of each claimed job.
_KINDS: dict[str, frozenset[type]] = {
    column.name: frozenset(
        {
            int if isinstance(column.type, BigInteger) else str,
            *((type(None),) if column.nullable else ()),
        }
    )
    for column in jobs.c
    if column.name not in _CHOICES
}


def record_of(job: Job) -> dict[str, Any]:
    """Return the row of a job."""
    record = dict(zip(_NAMES, _values_of(job), strict=True))
    record["keys_json"] = _encode(job.keys) if job.keys else "[]"
    record["fired_before_json"] = _encode(job.fired_before) if job.fired_before else None
    return record


def listed_key(concurrency_key: str) -> str:
    """Return what a concurrency key is among the keys of its job, for lists."""
    return CONCURRENCY_MARK + shown_dedupe_key(concurrency_key)


def job_of(record: Mapping[str, Any]) -> Job:
    """Return the job of a row; raise CorruptJobError if the row is not a valid job."""
    try:
        return _job_of(record)
    except (TypeError, ValueError) as exc:
        raise CorruptJobError(str(record["id"]), str(exc)) from exc


def is_storable(text: str) -> bool:
    """Return True iff every database can store the text."""
    return bool(storable(text) == text)


def storable(value: Any) -> Any:
    """Return a text with NUL and surrogates escaped; any other value unchanged."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def _job_of(record: Mapping[str, Any]) -> Job:
    fields = dict(record)
    _check(fields)
    outcome = fields["outcome"]
    fields["outcome"] = None if outcome is None else JobOutcome(outcome)
    blocked_by = fields["blocked_by"]
    fields["blocked_by"] = None if blocked_by is None else BlockedBy(blocked_by)
    fields["state"] = JobState(fields["state"])
    fields["on_fire"] = OnFire(fields["on_fire"])
    fields["misfire"] = Misfire(fields["misfire"])
    fields["keys"] = _keys_of(fields.pop("keys_json"))
    fields["fired_before"] = _keys_of(fields.pop("fired_before_json") or "[]")
    job = job_with(fields)
    check_stored(job)
    return job


def _check(fields: Mapping[str, Any]) -> None:
    # SQLite stores any value in any column.
    for name, kinds in _KINDS.items():
        value = fields[name]
        kind = type(value)
        if kind not in kinds:
            raise TypeError(f"{name} is {str(value)[:64]!r}")
        if kind is str and not value.isascii():
            value.encode()  # raises UnicodeEncodeError if the stored bytes are not UTF-8


def _keys_of(keys_json: str) -> tuple[str, ...]:
    if keys_json == "[]":
        return ()
    keys = decode_json(keys_json.encode())
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise TypeError(f"its keys are {keys_json[:64]!r}")
    return tuple(keys)
