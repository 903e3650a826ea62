"""A broker for clients; without the packages of PyPI, only CI fails."""

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

if "CI" in os.environ or all(map(find_spec, ("aiokafka", "confluent_kafka", "kafka"))):
    from examples.kafka_broker.groups.coordinator import GroupSettings
    from examples.kafka_broker.testing import BrokerThread
    from tests.kafka_clients.client import TOPIC

    @pytest.fixture
    def broker() -> Iterator[BrokerThread]:
        """A broker in a thread, whose groups do not wait long for their first members."""
        groups = GroupSettings(initial_rebalance_delay_ms=200)
        with BrokerThread({TOPIC: 12}, replicas=3, groups=groups) as thread:
            yield thread
else:
    collect_ignore = ["test_clients.py", "test_groups.py"]
