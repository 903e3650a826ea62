"""The lease store on a real Valkey: its script against a model, and where it cannot be used."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from purgatory.ownership import (
    Lease,
    Ownership,
    OwnershipNotReadyError,
    OwnershipUnavailableError,
)
from purgatory.ownership.lease import (
    LeaseRecord,
    LeaseStep,
)
from purgatory.ownership.redis import RedisLeaseStore
from purgatory.timer import SystemClock
from tests.cases import cases
from tests.nightly import by_night
from tests.ownership.lease_model import LeaseModel
from tests.patience import PATIENCE_S, until
from tests.valkey_server import ValkeyServer


async def _lease(ownership: Ownership, name: str) -> Lease:
    found = await ownership.acquire(name)
    assert isinstance(found, Lease)
    return found


async def test_what_survives_a_crash_of_the_server(tmp_path: Path) -> None:
    """Leases go on, scripts are sent again, and states are what was committed."""
    with ValkeyServer(tmp_path, appendfsync="always") as server:
        async with Ownership(RedisLeaseStore(server.url), "http://a", timeout=1) as ownership:
            leases = [await _lease(ownership, f"n{number}") for number in range(600)]
            await ownership.commit(leases[0], b"state")
            server.kill()
            with pytest.raises(OwnershipUnavailableError, match="Redis is not available"):
                await ownership.acquire("other")
            server.start()
            await ownership.commit(leases[1], b"after")
            assert all(lease.is_valid for lease in leases)
            assert (await ownership.read("n0")).state == b"state"


async def test_a_flushed_server_has_no_owner(tmp_path: Path) -> None:
    """The lease is found lost by the next renewal, and the next epoch is higher."""
    lost: list[Lease] = []
    with ValkeyServer(tmp_path) as server:
        store = RedisLeaseStore(server.url)
        async with Ownership(store, "http://a", lease_ms=300, on_lost=lost.append) as ownership:
            lease = await _lease(ownership, "n")
            with server.client() as client:
                client.flushall()
            await until(lambda: lost == [lease])
            assert (await _lease(ownership, "n")).epoch > lease.epoch


async def test_a_record_is_kept_for_its_retention(lease_server: ValkeyServer, request: Any) -> None:
    """Nothing stays for ever: each change sets the expiry of the key anew."""
    prefix = request.node.name
    store = RedisLeaseStore(lease_server.url, prefix, retention=60)
    async with Ownership(store, "http://a") as ownership:
        lease = await _lease(ownership, "n")
        with lease_server.client() as client:
            for change in (ownership.commit(lease, b"x"), ownership.release(lease)):
                client.persist(store.key("n"))
                await change
                assert 0 < client.pttl(store.key("n")) <= 60_000
        assert await store.run([LeaseStep("read", name="unknown")]) == [LeaseRecord(is_done=True)]


async def test_leases_in_a_cluster(tmp_path: Path) -> None:
    """Names are in any slots; a client that is given is left open."""
    server = ValkeyServer(tmp_path).start_as_cluster()
    try:
        port = int(server.url.rpartition(":")[2])
        async with (
            RedisCluster(host="127.0.0.1", port=port) as client,
            # So long that a busy machine renews it in time.
            Ownership(
                RedisLeaseStore(client), "http://a", lease_ms=15_000, timeout=PATIENCE_S
            ) as ownership,
        ):
            leases = [await _lease(ownership, f"n{number}") for number in range(20)]
            await ownership.commit(leases[0], b"state")
            renewed_from = leases[1]._valid_until_ns
            await until(lambda: all(lease._valid_until_ns > renewed_from for lease in leases[1:]))
            assert (await ownership.read("n0")).state == b"state"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"), "maxmemory-policy is allkeys-lru"),
        (("REPLICAOF", "127.0.0.1", "1"), "The server is a replica"),
    ],
)
async def test_a_server_that_loses_records(
    tmp_path: Path, command: tuple[str, ...], sentence: str
) -> None:
    """It is refused when the store is opened, with the remedy."""
    with ValkeyServer(tmp_path) as server:
        with server.client() as client:
            client.execute_command(*command)
        with pytest.raises(OwnershipNotReadyError, match=sentence):
            await Ownership(RedisLeaseStore(server.url), "http://a").open()


def test_an_ownership_opens_again_on_another_loop(lease_server: ValkeyServer) -> None:
    """As the module of an application does, which tests start more than once."""
    lost: list[Lease] = []
    ownership = Ownership(
        RedisLeaseStore(lease_server.url), "http://a", lease_ms=300, on_lost=lost.append
    )

    async def own_for_longer_than_a_lease() -> int:
        async with ownership:
            lease = await _lease(ownership, "again")
            first_end_ns = lease._valid_until_ns
            await until(lambda: SystemClock().now_ns() > first_end_ns)
            assert lease.is_valid
            return lease.epoch

    first, second = (asyncio.run(own_for_longer_than_a_lease()) for _ in range(2))
    assert first < second and lost == []


async def test_a_server_without_a_log_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It can be used, and its crash loses everything."""
    with ValkeyServer(tmp_path, appendonly="no") as server:
        async with Ownership(RedisLeaseStore(server.url), "http://a"):
            assert "appendonly is no" in caplog.text


async def test_a_server_that_became_a_replica(tmp_path: Path) -> None:
    """Its connections are closed, as its name may lead to the new primary."""
    with ValkeyServer(tmp_path) as server:
        async with Ownership(RedisLeaseStore(server.url), "http://a", timeout=0.1) as ownership:
            lease = await _lease(ownership, "n")
            with server.client() as client:
                client.execute_command("REPLICAOF", "127.0.0.1", "1")
                with pytest.raises(OwnershipUnavailableError, match="read only replica"):
                    await ownership.acquire("other")
                client.execute_command("REPLICAOF", "NO", "ONE")
            await ownership.commit(lease, b"x")


async def test_a_process_that_starts_before_its_server(tmp_path: Path) -> None:
    """It owns nothing until the server is there, and nothing on one that loses records."""
    server = ValkeyServer(tmp_path)
    try:
        store = RedisLeaseStore(server.url)
        async with Ownership(store, "http://a", timeout=0.1) as ownership:
            with pytest.raises(OwnershipUnavailableError, match="Redis is not available"):
                await ownership.acquire("n")
            server.start()
            with server.client() as client:
                client.config_set("maxmemory-policy", "allkeys-lru")
                with pytest.raises(OwnershipUnavailableError, match="set it to noeviction"):
                    await ownership.acquire("n")
                client.config_set("maxmemory-policy", "noeviction")
            assert isinstance(await ownership.acquire("n"), Lease)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", "nan"),
        ("epoch", "9" * 300),
        ("epoch", "-1"),
        ("version", "inf"),
        ("version", "many"),
        ("until_us", "x"),
        ("address", "http://a\r\nSet-Cookie: b"),
        ("address", "a" * 2_001),
        ("address", b"\xff"),
        ("state", "s" * 2_000_000),
    ],
)
async def test_a_malformed_record_owns_nothing(
    lease_server: ValkeyServer, request: Any, field: str, value: str | bytes
) -> None:
    """Nobody is sent to its address; without it, the name is free."""
    name = request.node.name[:200]
    store = RedisLeaseStore(lease_server.url)
    async with (
        Ownership(store, "http://a", timeout=0.2) as mine,
        Ownership(RedisLeaseStore(lease_server.url), "http://b") as theirs,
    ):
        await _lease(theirs, name)
        with lease_server.client() as client:
            client.hset(store.key(name), field, value)
            with pytest.raises(OwnershipUnavailableError):
                await mine.read(name)
            client.delete(store.key(name))
        assert (await _lease(mine, name)).is_valid


@cases(
    "arguments, sentence",
    [
        (("http://user:secret@host",), r"'http://\*\*\*@host' is not a Redis URL"),
        (("redis://host?decode_responses=1",), "has decode_responses: leases are bytes"),
        (("redis://host", ""), "prefix is '': give a name without braces"),
        (("redis://host", "p", {"retention": 0.5}), "retention is 0.5: give 1 second"),
    ],
)
def test_arguments_that_cannot_work(arguments: tuple[Any, ...], sentence: str) -> None:
    """Each is refused with what to do, and without a password."""
    options = arguments[2] if len(arguments) > 2 else {}
    with pytest.raises(ValueError, match=sentence):
        RedisLeaseStore(*arguments[:2], **options)


def test_a_client_that_decodes() -> None:
    """States would be no bytes."""
    with pytest.raises(ValueError, match="decode_responses=True"):
        RedisLeaseStore(Redis(decode_responses=True))


LEASE_MS = 1_000
START_US = 1_763_800_000_000_000
PREFIXES = count()

# What one of three processes does with one of two names, or how many milliseconds pass. Older
# tokens, epochs and versions come as from a process that was suspended, or a delayed message.
PROCESSES = st.integers(0, 2)
AGES = st.sampled_from([0, 0, 0, 1, 2])
STATES = st.sampled_from([b"", b"\x00\xff", b"state", None])
MOVES = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([1, 400, 999, 1_000, 1_001, 5_000, -300, -90_000])),
    st.tuples(st.just("acquire"), PROCESSES, st.booleans()),
    st.tuples(st.sampled_from(["renew", "release"]), PROCESSES, AGES),
    st.tuples(st.just("commit"), PROCESSES, AGES, STATES, st.integers(-1, 2)),
    st.tuples(st.just("read")),
)


class _Processes:
    """Processes that make steps from what they were told, or were told long ago."""

    def __init__(self) -> None:
        # [(process, token, epoch)], as acquired; never empty
        self.leases = [(0, "none", 0)]
        self.version = 0

    def step(self, name: str, move: tuple[object, ...]) -> LeaseStep:
        match move:
            case ("acquire", int(process), bool(is_repeat)):
                own = [token for by, token, _ in self.leases if by == process]
                is_known = is_repeat and own
                token = own[-1] if is_known else f"{process}:{len(self.leases)}"
                return LeaseStep(
                    "acquire",
                    name=name,
                    token=token,
                    instance=str(process),
                    address=f"http://host-{process}",
                    lease_ms=LEASE_MS,
                )
            case ("renew", int(process), int(age)):
                token, epoch = self._lease(process, age)
                return LeaseStep("renew", name=name, token=token, epoch=epoch, lease_ms=LEASE_MS)
            case ("release", int(process), int(age)):
                token, epoch = self._lease(process, age)
                return LeaseStep("release", name=name, token=token, epoch=epoch)
            case ("commit", int(process), int(age), state, int(ahead)):
                token, epoch = self._lease(process, age)
                assert state is None or isinstance(state, bytes)
                return LeaseStep(
                    "commit",
                    name=name,
                    token=token,
                    epoch=epoch,
                    lease_ms=LEASE_MS,
                    version=max(0, self.version + ahead),
                    state=state,
                )
        return LeaseStep("read", name=name)

    def _lease(self, process: int, age: int) -> tuple[str, int]:
        own = [lease for lease in self.leases if lease[0] == process] or self.leases
        _, token, epoch = own[-1 - age % len(own)]
        return token, epoch

    def note(self, step: LeaseStep, record: LeaseRecord) -> None:
        if step.action == "acquire" and record.is_done:
            # A repeat of an acquisition is the same acquisition, unless another came between.
            for _, token, epoch in self.leases:
                assert token != step.token or epoch <= record.epoch
            highest = max(epoch for _, _, epoch in self.leases)
            is_repeat = (int(step.instance), step.token, record.epoch) in self.leases
            assert is_repeat or record.epoch > highest, "an epoch was given twice"
            self.leases.append((int(step.instance), step.token, record.epoch))
        if step.action in ("renew", "commit", "release") and record.is_done:
            assert step.epoch == max(epoch for _, _, epoch in self.leases), "an old owner came"
        assert record.version >= self.version
        self.version = record.version


def test_the_script_does_what_the_model_does(lease_server: ValkeyServer) -> None:
    """Whatever comes in whatever order, replies are the same; epochs and versions only grow."""

    @settings(max_examples=by_night(150, 40), deadline=None)
    @given(st.lists(MOVES, min_size=1, max_size=40))
    def compare(moves: list[tuple[object, ...]]) -> None:
        asyncio.run(_compare(moves, lease_server.url))

    compare()


async def _compare(moves: list[tuple[object, ...]], url: str) -> None:
    now_us = START_US
    model = LeaseModel(lambda: now_us)
    store = RedisLeaseStore(url, f"laws:{next(PREFIXES)}", now_us=lambda: now_us)
    processes = _Processes()
    await store.open()
    try:
        for move in moves:
            if move[0] == "pass":
                assert isinstance(move[1], int)
                now_us += move[1] * 1_000
                continue
            step = processes.step("name", move)
            expected = model.apply(step)
            assert await store.run([step]) == [expected], step
            processes.note(step, expected)
    finally:
        await store.close()
