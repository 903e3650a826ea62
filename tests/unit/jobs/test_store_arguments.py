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


@cases(
    "arguments, complaint",
    [
        ({"url_or_client": Redis(decode_responses=True)}, "turn it off"),
        ({"url_or_client": "redis://host?decode_responses=1"}, "has decode_responses: .*take it"),
        ({"shards": 0}, "give a number from 1 to 1024"),
    ],
)
def test_a_client_that_decodes_and_no_shards_are_refused(
    arguments: dict[str, Any], complaint: str
) -> None:
    """With the way out: jobs are bytes, and one of the shards has them."""
    with pytest.raises(ValueError, match=complaint):
        RedisJobStore(**{"url_or_client": "redis://host", **arguments})


@cases("timeout", [0, -1, float("nan"), float("inf"), 61, "5", None, True])
def test_a_timeout_is_some_seconds(timeout: Any) -> None:
    """Every call would end at once with another, or wait for ever."""
    with pytest.raises((ValueError, TypeError), match=r"timeout is .*: give"):
        RedisJobStore("redis://host", timeout=timeout)


@cases("prefix", ["", "a{b", "a}"])
def test_a_prefix_is_a_name_without_braces(prefix: str) -> None:
    """The error names both."""
    with pytest.raises(ValueError, match=r"prefix is .*give a name without braces"):
        RedisJobStore("redis://host", prefix=prefix)


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
