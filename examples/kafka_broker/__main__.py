"""Figures: `python -m examples.kafka_broker` loads a broker and prints what its purgatories do."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from resource import RUSAGE_SELF, getrusage

from crc32c import crc32c

from examples.kafka_broker.broker import KafkaBroker
from examples.kafka_broker.errors import ErrorCode
from examples.kafka_broker.groups.coordinator import Coordinator
from examples.kafka_broker.groups.group import JoinRequest, JoinResult, SyncRequest
from examples.kafka_broker.log.delayed_operations import FetchPosition, FetchRequest
from examples.kafka_broker.log.record_batch import HEADER
from purgatory.testing import AutojumpEventLoop, current_clock

MEMBERS = 200
FETCHES = 1_000
ROUNDS = 20


def main() -> None:
    """Run in virtual time, without sockets, and print a table."""
    with asyncio.Runner(loop_factory=AutojumpEventLoop) as runner:
        runner.run(_run())


async def _run() -> None:
    async with KafkaBroker({"orders": 1}, replicas=3, clock=current_clock()) as broker:
        print(f"{'':<46}{'CPU':>12}  {'virtual time':>12}")
        await _storm(broker.coordinator)
        after_storm = _sizes(broker)
        parked = await _fetches(broker)
        print(
            f"\n{'NumDelayedOperations / PurgatorySize':<46}"
            + "".join(map(_cell, broker.purgatories))
        )
        print(f"{'after the storm':<46}{after_storm}")
        print(f"{'while the fetches are parked':<46}{parked}")
        print(f"{'at the end':<46}{_sizes(broker)}")


async def _storm(coordinator: Coordinator) -> None:
    joined: list[JoinResult] = []
    with _measured(f"{MEMBERS} members join, and share one generation", MEMBERS):
        for number in range(MEMBERS):
            coordinator.join(_join(f"m{number}"), joined.append)
        # The initial delay, which is extended once.
        await asyncio.sleep(6.1)
        for member in joined:
            coordinator.sync(_sync(member), _ignore)
    with _measured(f"a heartbeat of each, {ROUNDS} times", MEMBERS * ROUNDS):
        for _ in range(ROUNDS):
            for member in joined:
                coordinator.heartbeat("g", member.member_id, member.generation)
    again: list[JoinResult] = []
    with _measured("the leader joins again, and so do all", MEMBERS):
        leader = joined[0].leader_id
        for member in sorted(joined, key=lambda member: member.member_id != leader):
            coordinator.join(_join("", member.member_id), again.append)
        for member in again:
            coordinator.sync(_sync(member), _ignore)
    assert {(each.error, each.generation) for each in again} == {(ErrorCode.NONE, 2)}


async def _fetches(broker: KafkaBroker) -> str:
    """Return the sizes of the purgatories while fetches are parked."""
    manager, name = broker.replica_manager, ("orders", 0)
    responses: list[object] = []

    def park(offset: int) -> None:
        request = FetchRequest(positions={name: FetchPosition(offset)}, max_wait_ms=3_600_000)
        for _ in range(FETCHES):
            manager.fetch(request, responses.append)

    async def complete() -> None:
        manager.produce({name: _batch()}, acks=-1, timeout_ms=1000, respond=_ignore)
        # More than a few are tried in slices.
        await asyncio.sleep(0.001)
        assert len(responses) % FETCHES == 0 < len(responses)

    with _measured(f"{FETCHES} fetches are parked", FETCHES):
        park(0)
    with _measured("one record completes them all", FETCHES):
        await complete()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    park(1)
    bytes_each = (tracemalloc.get_traced_memory()[0] - before) / FETCHES
    tracemalloc.stop()
    sizes = _sizes(broker)
    await complete()
    print(f"{'a parked fetch takes':<46}{bytes_each / 1024:>6.1f} KiB")
    with _measured(f"{FETCHES} produces with acks=all, on three replicas", FETCHES):
        for _ in range(FETCHES):
            manager.produce({name: _batch()}, acks=-1, timeout_ms=1000, respond=_ignore)
    return sizes


@contextmanager
def _measured(what: str, count: int) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    began, cpu = loop.time(), _cpu()
    yield
    micros = (_cpu() - cpu) * 1e6 / count
    print(f"{what:<46}{micros:>7.1f} us/1  {loop.time() - began:>10.3f} s")


def _sizes(broker: KafkaBroker) -> str:
    """Return NumDelayedOperations and PurgatorySize of each kind, as Kafka calls them."""
    found = [purgatory.statistics() for purgatory in broker.purgatories.values()]
    return "".join(_cell(f"{each.parked}/{each.watched}") for each in found)


def _cell(text: str) -> str:
    return f"{text:>12}"


def _cpu() -> float:
    used = getrusage(RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _join(client_id: str, member_id: str = "") -> JoinRequest:
    return JoinRequest(
        group_id="g", client_id=client_id, member_id=member_id, protocols=[("range", b"x" * 50)]
    )


def _sync(member: JoinResult) -> SyncRequest:
    assignments = {member_id: b"x" * 50 for member_id, _, _ in member.members}
    return SyncRequest(
        group_id="g",
        member_id=member.member_id,
        generation=member.generation,
        assignments=assignments,
    )


def _batch() -> bytes:
    payload = b"x" * 100
    head = HEADER.pack(0, HEADER.size - 12 + len(payload), -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    return head[:17] + crc32c(head[21:] + payload).to_bytes(4) + head[21:] + payload


def _ignore(result: object) -> None:
    """Take no notice of a response."""


if __name__ == "__main__":
    main()
