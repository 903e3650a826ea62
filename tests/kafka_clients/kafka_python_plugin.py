"""A plugin for kafka-python's own tests, which gives them this broker as theirs."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from examples.kafka_broker.groups.coordinator import GroupSettings
from examples.kafka_broker.testing import BrokerThread

# Left out of the archive; it starts Java.
_service: Any = ModuleType("test.service")
_service.ExternalService = _service.SpawnedService = object
sys.modules["test.service"] = _service


class _Fixture:
    """What the tests use of their KafkaFixture."""

    partitions = 4
    replicas = 1

    def __init__(self, thread: BrokerThread) -> None:
        self._thread = thread

    def _enrich_client_params(self, params: dict[str, Any], **defaults: Any) -> dict[str, Any]:
        return {**defaults, "bootstrap_servers": self._thread.address, **params}

    def close(self) -> None:
        """Nothing: the session ends it."""

    zookeeper = None


@pytest.fixture(scope="session", autouse=True)
def _broker() -> Any:
    from test.integration import fixtures  # type: ignore[import-not-found] # of the archive

    groups = GroupSettings(initial_rebalance_delay_ms=200, min_session_timeout_ms=100)
    with BrokerThread(groups=groups) as thread:
        fixtures.KafkaFixture.instance = lambda *args, **options: _Fixture(thread)
        yield
