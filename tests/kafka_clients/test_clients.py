"""Each client produces with acks=all and consumes; nothing is lost, and no fetch is early."""

import asyncio
import logging
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
from confluent_kafka import Producer

from examples.kafka_broker.log.delayed_operations import (
    DelayedFetch,
    Fetched,
    FetchRequest,
    FetchRespond,
)
from examples.kafka_broker.log.partition import TopicPartition
from examples.kafka_broker.testing import BrokerThread
from tests.kafka_clients.client import TOPIC
from tests.kafka_clients.processes import CLIENTS, Client, until
from tests.nightly import NIGHTLY, by_night
from tests.patience import PATIENCE_S

COUNT = by_night(100_000, 2_000)
HERE = Path(__file__).parent
# The others are of APIs that the broker does not have.
ADMIN_TESTS = (
    "create_delete_topics",
    "delete_groups",
    "delete_groups_with_errors",
    "describe_group_exists",
    "list_partition_offsets",
)

logger = logging.getLogger(__name__)


@pytest.mark.parametrize("client", CLIENTS)
def test_each_record_is_consumed_once(broker: BrokerThread, client: str) -> None:
    """Also after a restart, which resumes at the committed offsets."""
    for _ in range(2):
        assert sorted(_produced_and_consumed(client, broker.address)) == list(range(COUNT))
    assert broker.call(lambda it: it.purgatories["Produce"].parked) == 0


def _produced_and_consumed(client: str, address: str) -> list[int]:
    process = Client(client, address, "a", produce=COUNT)
    try:
        until(lambda: len(process.values) >= COUNT, process)
    finally:
        process.end()
    return process.values


# When a fetch ends is the broker's: by day one client asks.
@pytest.mark.parametrize("client", by_night(CLIENTS, ["confluent"]))
def test_a_fetch_waits_to_the_millisecond(
    broker: BrokerThread, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For `fetch.min.bytes` or `fetch.max.wait.ms`: never early, and no later than a timer is."""
    waits_ms = (50, 500, 2_000)
    # By `fetch.max.wait.ms`: what those had waited that responded at it, in ms.
    waited: dict[int, list[float]] = {wait_ms: [] for wait_ms in waits_ms}
    filled: Counter[int] = Counter()
    late: list[FetchRequest] = []
    manager, clock = broker.broker.replica_manager, broker.broker.purgatories["Fetch"].clock
    fetch = manager.fetch

    def note(request: FetchRequest, respond: FetchRespond) -> DelayedFetch | None:
        if request.replica_id >= 0:
            return fetch(request, respond)
        began_ns, wait_ms = clock.now_ns(), request.max_wait_ms

        def end(results: Mapping[TopicPartition, Fetched]) -> None:
            if sum(len(each.records) for each in results.values()) >= request.min_bytes:
                filled[wait_ms] += 1
            else:
                waited[wait_ms].append((clock.now_ns() - began_ns) / 1e6)
            respond(results)

        def check() -> None:
            if operation is not None and not operation.is_completed:
                late.append(request)

        operation = fetch(request, end)
        # A tick, and the millisecond that is begun.
        asyncio.get_running_loop().call_later((wait_ms + 2) / 1_000, check)
        return operation

    monkeypatch.setattr(manager, "fetch", note)
    processes = [
        Client(client, broker.address, "a", group=f"g{each}", max_wait_ms=each, min_bytes=1_000)
        for each in waits_ms
    ]
    try:
        until(lambda: all(len(each) > 1 for each in waited.values()), *processes)
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce(TOPIC, b"1".rjust(2_000, b"0"))
        assert producer.flush(PATIENCE_S) == 0
        until(lambda: all(each.values == [1] for each in processes), *processes)
    finally:
        for process in processes:
            process.end()
    for wait_ms, found in waited.items():
        logger.info("%s, %d ms: %.1f to %.1f", client, wait_ms, min(found), max(found))
        assert min(found) >= wait_ms
    assert waited.keys() == filled.keys() and not late


@NIGHTLY
def test_the_own_tests_of_kafka_python(tmp_path: Path) -> None:
    """Those of consumers, producers, groups and topics, from its archive; not of transactions."""
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, f"kafka-python=={version('kafka-python')}"], cwd=tmp_path, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("*/test")
    # Or it would be the standard library's.
    (folder / "__init__.py").touch()
    path = os.pathsep.join([str(folder.parent), str(HERE.parents[1]), *sys.path])
    admin = "test/integration/test_admin_integration.py"
    # Their own options are of a plugin for timeouts.
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts="]
    ran = subprocess.run(
        [
            *command,
            *("-p", "tests.kafka_clients.kafka_python_plugin", "-k", "not transactional"),
            "test/integration/test_consumer_integration.py",
            "test/integration/test_producer_integration.py",
            *(f"{admin}::test_{each}" for each in ADMIN_TESTS),
        ],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": path, "KAFKA_VERSION": "3.2"},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None and int(passed[1]) >= 32, ran.stdout
