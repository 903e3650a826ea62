"""Brokers in virtual time; without the packages of the group `kafka`, only CI fails."""

import os
from collections.abc import AsyncIterator
from importlib.util import find_spec

import pytest

from purgatory.testing import current_clock
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture

HAS_KAFKA = all(map(find_spec, ("aiokafka", "crc32c", "kio")))

if HAS_KAFKA or "CI" in os.environ:
    from examples.kafka_broker.broker import KafkaBroker

    @pytest.fixture
    async def broker() -> AsyncIterator[KafkaBroker]:
        """A broker on the loop of the test, which leaves nothing behind."""
        async with KafkaBroker({"orders": 6}, replicas=3, clock=current_clock()) as broker:
            yield broker
        assert not broker.connections
        assert sum(each.parked for each in broker.purgatories.values()) == 0
else:
    collect_ignore = ["test_replica_manager.py", "test_virtual_time.py", "test_wire.py"]
