"""Settings that no waiting corrects: the start ends with a sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from purgatory import Purgatory
from purgatory.jobs.model import StoreNotReadyError, StoreUnavailableError
from purgatory.jobs.redis import RedisJobStore
from purgatory.jobs.sql import SqlJobStore, migrate
from purgatory.redis_server.client import connected
from tests.cases import cases
from tests.patience import PATIENCE_S
from tests.valkey_server import ValkeyServer


async def test_a_wrong_password_ends_the_start(lone_redis_server: ValkeyServer) -> None:
    """So does none, and a database that the server does not have."""
    with lone_redis_server.client() as client:
        client.config_set("requirepass", "right")
        for query, complaint in (
            ("", "refuses the login"),
            ("?password=wrong", "refuses the login"),
            ("?password=right&db=99", "has no such database"),
        ):
            with pytest.raises(StoreNotReadyError, match=complaint) as caught:
                async with Purgatory(jobs=RedisJobStore(lone_redis_server.url + query)):
                    pass
            assert "wrong" not in str(caught.value)
        client.config_set("requirepass", "")


async def test_a_database_that_is_refused_is_not_replaced(redis_server: ValkeyServer) -> None:
    """Each attempt fails: redis-py up to version 7 tries again on a connection to number 0."""
    url = redis_server.url + "?db=99"
    async with aclosing(connected(url, PATIENCE_S)) as client:
        for _ in range(2):
            with pytest.raises(RedisError):
                await client.ping()
    async with aclosing(Redis.from_url(url)) as client:
        with pytest.raises(StoreNotReadyError, match="has no such database"):
            await RedisJobStore(client).open()


async def test_a_missing_folder_ends_the_start(tmp_path: Path) -> None:
    """SQLite makes a file, and no folder."""
    with pytest.raises(StoreNotReadyError, match=r"there is no folder .*/none' .*create it"):
        async with Purgatory(jobs=SqlJobStore(f"sqlite:///{tmp_path}/none/jobs.db")):
            pass


async def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    """Its URL may be misspelt, and an empty file has no jobs."""
    with pytest.raises(StoreNotReadyError, match=r"no SQLite file .*/typo.db'.*purgatory.jobs.sql"):
        async with Purgatory(jobs=SqlJobStore(f"sqlite:///{tmp_path}/typo.db")):
            pass
    assert not os.listdir(tmp_path)


async def test_a_folder_in_place_of_a_file_ends_the_start(tmp_path: Path) -> None:
    """To try again would not help."""
    with pytest.raises(StoreNotReadyError, match="is a folder: name a SQLite file in it"):
        async with Purgatory(jobs=SqlJobStore(f"sqlite:///{tmp_path}")):
            pass
    with pytest.raises(StoreNotReadyError, match="is a folder"):
        await migrate(f"sqlite:///{tmp_path}")


@cases(
    "kind, url",
    [
        (RedisJobStore, "redis://127.0.0.1:1"),
        (SqlJobStore, "postgresql://nobody@127.0.0.1:1/none"),
    ],
)
async def test_a_server_out_of_reach_is_the_reason(kind: Callable[[str], Any], url: str) -> None:
    """Nothing was requested but to open the store, so that nothing is uncertain."""
    with pytest.raises(StoreUnavailableError, match="check the server") as caught:
        await kind(url).open()
    assert "may or may not" not in str(caught.value)
