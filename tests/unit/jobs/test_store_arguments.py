"""Arguments of stores that cannot work: refused where they are given."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.signals.redis import RedisSignals
from tests.cases import cases


@cases("make", [RedisJobStore, RedisSignals, RedisLeaseStore])
@cases(
    "url, complaint",
    [
        ("redis://host/jobs", "'redis://host/jobs' has a path that is no number of a database"),
        ("rediss://user:secret@host/0/1", r"'rediss://\*\*\*@host/0/1' has a path that is no"),
        ("redis://user/secret@host/0", r"'redis://\*\*\*@host/0' is not a Redis URL"),
    ],
)
def test_a_database_of_redis_is_a_number(make: Any, url: str, complaint: str) -> None:
    """With another path, redis-py uses database 0, or one of another number."""
    with pytest.raises(ValueError, match=f"{complaint}.*: give redis://HOST:PORT/NUMBER") as caught:
        make(url)
    assert "secret" not in str(caught.value)
    make("redis://host/?db=7")
    for path in ("", "/", "/7", "/7/", "//7"):
        make(f"redis://host:6379{path}")


@cases("make", [RedisJobStore, RedisSignals])
@cases(
    "arguments, complaint",
    [
        ({"url_or_client": Redis(decode_responses=True)}, "turn it off"),
        ({"url_or_client": "redis://host?decode_responses=1"}, "has decode_responses: .*take it"),
        ({"shards": 0}, r"shards is 0: give a number from 1 to"),
        *(({"prefix": each}, r"prefix is .*give a name without braces") for each in ("", "a{b")),
        *(({"timeout": each}, r"timeout is .*: give") for each in (0, -1, float("nan"), 61, "5")),
    ],
)
def test_what_no_store_in_redis_can_have_is_refused(
    make: Any, arguments: dict[str, Any], complaint: str
) -> None:
    """With the way out: what is stored is bytes, a shard has it, and no call lasts for ever."""
    with pytest.raises((ValueError, TypeError), match=complaint):
        make(**{"url_or_client": "redis://host", **arguments})


def test_an_acknowledgement_is_from_memory_or_from_the_disk() -> None:
    """Nothing else can be waited for."""
    with pytest.raises(ValueError, match="ack"):
        RedisSignals("redis://host", ack="disk")  # type: ignore[arg-type] # on purpose


@cases("url", ["jobs.db", "sqlite://jobs.db", "sqlite+aiosqlite://jobs.db"])
def test_a_file_without_three_slashes_is_shown_with_them(url: str) -> None:
    """Of two slashes, the second would begin the name of a host."""
    with pytest.raises(ValueError, match=r"three slashes.*sqlite:///jobs\.db") as caught:
        SqlJobStore(url)
    assert "in memory" not in str(caught.value)


@cases("url", ["sqlite:///file:jobs?mode=memory&uri=true", "sqlite:///file::memory:?uri=true"])
def test_sqlite_in_memory_is_refused_as_a_uri_too(url: str) -> None:
    """It would be lost with its connection."""
    with pytest.raises(ValueError, match="SQLite in memory is lost with its connection"):
        SqlJobStore(url)
