"""Databases of one server, which have keys of their own, but the same channels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_redis_signals import parked, worker
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path) as running:
        yield running


async def test_a_process_is_asked_by_those_of_its_database_only(server: ValkeyServer) -> None:
    async with (
        worker(server.url) as elsewhere,
        worker(f"{server.url}?db=1") as here,
        worker(f"{server.url}?db=1") as there,
    ):
        waiting = await parked(there, "k")
        assert here.shared_signals is not None and elsewhere.shared_signals is not None
        assert await here.shared_signals.ask("waiting", "k") == [1]
        assert await elsewhere.shared_signals.ask("waiting", "k") == []
        await elsewhere.fire("k", "elsewhere")
        await here.fire("k", "here")
        assert (await waiting).value == "here"
