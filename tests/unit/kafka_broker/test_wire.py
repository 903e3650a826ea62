"""What the broker does with bytes: exact waits, and input that no client sends."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from examples.kafka_broker.apis import APIS
from examples.kafka_broker.broker import KafkaBroker
from examples.kafka_broker.wire.codec import BadRequest, _builder, write_response
from examples.kafka_broker.wire.connection import Connection
from tests.cases import cases
from tests.unit.kafka_broker.batches import batch

PRODUCE, FETCH, METADATA, API_VERSIONS, CREATE_TOPICS = 0, 1, 3, 18, 19
JOIN_GROUP, LEAVE_GROUP, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS = 11, 13, 15, 16, 42


class Client:
    """A connection, on which requests are built by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, key: int, version: int, fields: dict[str, Any], client_id: str = "test") -> None:
        schema: Any = load_request_schema(key, version)
        header = schema.__header_schema__
        ids = {"request_api_key": key, "request_api_version": version, "correlation_id": 1}
        frame = _Frame()
        entity_writer(header)(frame, header(**ids, client_id=client_id))  # type: ignore[arg-type]
        entity_writer(schema)(frame, _builder(schema)(fields))  # type: ignore[arg-type]
        self.writer.write(len(frame.data).to_bytes(4) + frame.data)

    async def read(self, key: int, version: int) -> Any:
        size = int.from_bytes(await self.reader.readexactly(4))
        data = await self.reader.readexactly(size)
        schema: Any = load_response_schema(key, version)
        _, start = entity_reader(schema.__header_schema__)(data, 0)
        response, _ = entity_reader(schema)(data, start)
        return response

    async def call(self, key: int, version: int, **fields: Any) -> Any:
        self.send(key, version, fields)
        return await self.read(key, version)


class _Frame:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> int:
        self.data += data
        return len(data)


@asynccontextmanager
async def connected(broker: KafkaBroker) -> AsyncIterator[Client]:
    """A connection to the broker."""
    reader, writer = await asyncio.open_connection(broker.host, broker.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        await asyncio.sleep(0.001)


def fetch(wait_ms: int, min_bytes: int = 1, offset: int = 0) -> dict[str, Any]:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
    return {
        "max_wait": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": 2**20,
        "replica_id": -1,
        "topics": [{"topic": "orders", "partitions": [part]}],
    }


def produce(data: bytes, acks: int = -1) -> dict[str, Any]:
    parts = [{"index": 0, "records": data}]
    return {
        "acks": acks,
        "timeout": 30_000,
        "topic_data": [{"name": "orders", "partition_data": parts}],
    }


def join(group_id: str) -> dict[str, Any]:
    return {
        "session_timeout": 1_800_000,
        "rebalance_timeout": 3_600_000,
        "group_id": group_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


@pytest.mark.parametrize("wait_ms", [50, 500, 2_000])
async def test_a_fetch_waits_to_the_millisecond(broker: KafkaBroker, wait_ms: int) -> None:
    """Never early, and less than a tick late; at once when the bytes are there."""
    loop = asyncio.get_running_loop()
    async with connected(broker) as client, connected(broker) as other:
        began = loop.time()
        await client.call(FETCH, 11, **fetch(wait_ms))
        assert 0 <= loop.time() - began - wait_ms / 1000 < 0.001
        client.send(FETCH, 11, fetch(wait_ms, min_bytes=2 * len(batch())))
        began = loop.time()
        for _ in range(2):
            await other.call(PRODUCE, 9, **produce(batch()))
        response = await client.read(FETCH, 11)
        assert len(response.responses[0].partitions[0].records) == 2 * len(batch())
        assert loop.time() - began < 0.001


async def test_sessions_of_fetches_are_refused(broker: KafkaBroker) -> None:
    """As a broker does whose cache of sessions is full: id 0, and an error for any other."""
    async with connected(broker) as client:
        request = {**fetch(0), "session_id": 0, "session_epoch": 0}
        assert (await client.call(FETCH, 11, **request)).session_id == 0
        request |= {"session_id": 7, "session_epoch": 1}
        assert (await client.call(FETCH, 11, **request)).error_code == 70


async def test_a_produce_without_acks_has_no_response(broker: KafkaBroker) -> None:
    """The next response on the connection is that of the next request."""
    async with connected(broker) as client:
        client.send(PRODUCE, 9, produce(batch(), acks=0))
        response = await client.call(FETCH, 11, **fetch(10))
        assert (
            response.responses[0].partitions[0].records == batch()[:12] + b"\0" * 4 + batch()[16:]
        )
        refused = await client.call(PRODUCE, 9, **produce(batch(), acks=2))
        assert refused.responses[0].partition_responses[0].error_code == 21
        # An error closes the connection, so that the client asks who leads.
        client.send(PRODUCE, 9, produce(b"no batch", acks=0))
        assert await client.reader.read() == b""


async def test_what_topics_are_created(broker: KafkaBroker) -> None:
    """Each has its own error; a request for too many partitions creates none."""

    async def create(**counts: int) -> dict[str, int]:
        topics = [
            {"name": name, "num_partitions": count, "replication_factor": -1}
            for name, count in counts.items()
        ]
        response = await client.call(CREATE_TOPICS, 7, topics=topics, timeout=1000)
        return {each.name: each.error_code for each in response.topics}

    async with connected(broker) as client:
        assert await create(a=2, b=-1, c=-5, orders=1) == {"a": 0, "b": 0, "c": 37, "orders": 36}
        assert await create(d=1, e=2**31 - 1) == {"d": 44, "e": 44}
        assert broker.replica_manager.topics.keys() == {"orders", "a", "b"}


async def test_a_request_creates_so_many_topics(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it has named first; the others when it is repeated."""
    monkeypatch.setattr("examples.kafka_broker.apis.topics._MAX_NEW_PARTITIONS", 2)
    topics = [{"name": name} for name in ("a", "orders", "b", "c")]
    async with connected(broker) as client:
        for errors in ([0, 0, 0, 3], [0, 0, 0, 0]):
            response = await client.call(METADATA, 8, topics=topics)
            assert [each.error_code for each in response.topics] == errors


async def test_groups_of_any_name_and_number(broker: KafkaBroker) -> None:
    """They are joined with an hour for a rebalance, listed, described, and deleted when empty."""
    names = ["g" * 300, "line\nfeed", *map(str, range(201))]
    async with connected(broker) as client:
        joined = {}
        for name in names:
            joined[name] = await client.call(JOIN_GROUP, 2, **join(name))
        assert {each.error_code for each in joined.values()} == {0}
        listed = await client.call(LIST_GROUPS, 4)
        assert {each.group_id for each in listed.groups} == set(names)
        described = await client.call(DESCRIBE_GROUPS, 5, groups=[*names[:2], "none"])
        states = ["CompletingRebalance", "CompletingRebalance", "Dead"]
        assert [each.group_state for each in described.groups] == states
        for name in names[1:]:
            await client.call(LEAVE_GROUP, 2, group_id=name, member_id=joined[name].member_id)
        deleted = await client.call(DELETE_GROUPS, 1, groups_names=[*names, "none"])
        assert [each.error_code for each in deleted.results] == [68, *[0] * 202, 69]
        assert len((await client.call(LIST_GROUPS, 4)).groups) == 1


async def test_a_member_with_a_very_long_client_id(broker: KafkaBroker) -> None:
    """It joins as others do, and its member id fits into a string."""
    async with connected(broker) as client, connected(broker) as other:
        client.send(JOIN_GROUP, 3, join("g"), "x" * (2**15 - 1))
        other.send(JOIN_GROUP, 3, join("g"))
        joined = [await each.read(JOIN_GROUP, 3) for each in (client, other)]
        assert {each.leader for each in joined} == {joined[0].member_id}
        # No older version can return a string that is longer.
        client.send(JOIN_GROUP, 9, join("g" * 2**15))
        assert await client.reader.read() == b""


async def test_a_response_that_fails_is_of_one_member(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is closed, and the others of the group have theirs."""

    def write(key: int, version: int, *args: Any) -> bytes:
        assert version != 3
        return write_response(key, version, *args)

    monkeypatch.setattr("examples.kafka_broker.broker.write_response", write)
    async with connected(broker) as client, connected(broker) as other:
        client.send(JOIN_GROUP, 3, join("g"))
        other.send(JOIN_GROUP, 2, join("g"))
        assert await client.reader.read() == b""
        assert (await other.read(JOIN_GROUP, 2)).generation_id == 1


async def test_unknown_versions(broker: KafkaBroker, caplog: pytest.LogCaptureFixture) -> None:
    """Of ApiVersions: the versions, in the oldest form (KIP-511). Of others: it hangs up."""
    caplog.set_level(logging.INFO)
    async with connected(broker) as client:
        head = API_VERSIONS.to_bytes(2) + (99).to_bytes(2) + b"\0\0\0\1" + b"\xff\xff"
        client.writer.write(len(head).to_bytes(4) + head)
        response = await client.read(API_VERSIONS, 0)
        assert response.error_code == 35
        assert {each.api_key for each in response.api_keys} == set(APIS)
        client.writer.write(len(head).to_bytes(4) + b"\0\1" + head[2:])
        assert await client.reader.read() == b""
    assert "API 1, version 99" in caplog.text and "Traceback" not in caplog.text


@cases(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff\0",
        b"\0\0\0\4\0\1\0\x0b",
        b"\0\0\0\x0a\0\1\0\x0b\0\0\0\1\0\x09",
        b"\0\0\0\x20\0\x0b\0\x09\0\0\0\1\xff\xff" + b"\xff" * 22,
        b"\0\0\0\x10\0\x01\0\x0b\0\0\0\1\xff\xff" + b"\x7f" * 6,
        # An array of 2**31 - 1 topics, and of 2**32 - 2.
        b"\0\0\0\x0e\0\x03\0\1\0\0\0\1\xff\xff\x7f\xff\xff\xff",
        b"\0\0\0\x29\0\x01\0\x0c\0\0\0\1\xff\xff\0" + bytes(25) + b"\xff\xff\xff\xff\x0f",
    ],
)
async def test_garbage_closes_the_connection(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """One line in the log, without a traceback, and other clients notice nothing."""
    async with connected(broker) as client, connected(broker) as other:
        client.writer.write(data)
        try:
            assert await client.reader.read() == b""
        except ConnectionResetError:
            pass
        assert (await other.call(FETCH, 11, **fetch(0))).error_code == 0
    assert "Traceback" not in caplog.text


async def test_any_bytes_are_handled_or_refused(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Of every API: they neither raise anything else nor end the process."""
    random, connection = Random(1), Connection(broker._handle, set())
    handled = set()
    for _ in range(20_000):
        key, api = random.choice(list(APIS.items()))
        version = random.randint(api.min_version, api.max_version)
        head = key.to_bytes(2) + version.to_bytes(2) + b"\0\0\0\1" + b"\0\0"
        tags = b"\0" * load_request_schema(key, version).__flexible__
        # Small lengths, null ones, and very large ones.
        some = [*[0] * random.randrange(40), 1, 2, 3, 127, 255, 255, random.randrange(256)]
        body = bytes(random.choices(some, k=random.randrange(60)))
        try:
            broker._handle(connection, head + tags + body, lambda response: None)
        except BadRequest:
            continue
        handled.add(key)
    await asyncio.sleep(3600)
    assert handled == APIS.keys()
    assert "Traceback" not in caplog.text


async def test_a_request_may_come_byte_by_byte(broker: KafkaBroker) -> None:
    """And one that never becomes complete leaves nothing behind when its client does."""
    async with connected(broker) as client:
        frame = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"
        for byte in frame:
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        assert (await client.read(API_VERSIONS, 0)).error_code == 0
        client.writer.write(frame[:-1])


async def test_a_client_that_leaves_takes_its_fetch_along(broker: KafkaBroker) -> None:
    """Nothing of it is parked any more, and nothing is read for it."""
    fetches = broker.purgatories["Fetch"]
    before = fetches.parked
    async with connected(broker) as client:
        client.send(FETCH, 11, fetch(60_000))
        await asyncio.sleep(0.001)
        assert fetches.parked == before + 1
    assert fetches.parked == before


async def test_a_client_that_does_not_read_is_not_read_from(broker: KafkaBroker) -> None:
    """A broker holds one response and few requests for it, however many it has sent."""
    data = batch(payload=b"x" * 500_000)
    async with connected(broker) as client:
        for _ in range(2):
            await client.call(PRODUCE, 9, **produce(data))
        transport: Any = client.writer.transport
        transport.pause_reading()
        for _ in range(40):
            client.send(FETCH, 11, fetch(0, offset=1))
        client.writer.write(100_000 * b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
        await asyncio.sleep(10)
        (connection,) = broker.connections
        # And what one read brings.
        assert len(connection._buffer) <= 2**16 + 2**18
        assert 0 < connection._transport.get_write_buffer_size() <= len(data) + 1000
        transport.resume_reading()
        for _ in range(40):
            response = await client.read(FETCH, 11)
            assert len(response.responses[0].partitions[0].records) == len(data)
        transport.abort()
