"""The servers of a storm, and everything that is done to them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import redis

from tests.chaos.signals.proxy import Proxy
from tests.free_port import free_port
from tests.patience import PATIENCE_S
from tests.valkey_server import BINARY, ValkeyServer

MASTERS = 3
SLOTS = 16_384
# A node is taken for dead after this: most stalls are shorter, and some longer.
NODE_TIMEOUT_MS = 1_500
# A Sentinel gives up a failover that takes longer.
FAILOVER_MS = 4_000
# As Sentinels know it.
SERVICE = "signals"
# A key in the slot of the first log.
LOG = "{purgatory:signals:0}"
LONGEST_STALL_S = 2.5


class Servers(ABC):
    """What keeps the signals. Each method returns once a new connection is served again."""

    url: str
    lossy: frozenset[str]
    """The faults that lose writes: cursors may expire for them."""
    faults: tuple[str, ...] = ()
    """Those that only these have."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder = folder
        self._random = chance

    @abstractmethod
    async def start(self) -> None:
        """Start everything."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill a server, and have what is left or what is in its file serve."""

    @abstractmethod
    async def cut(self) -> None:
        """Close every connection."""

    @abstractmethod
    async def stall(self, seconds: float) -> None:
        """Be silent for a while, with the connections open."""

    @abstractmethod
    async def empty(self) -> None:
        """FLUSHALL."""

    @abstractmethod
    async def lose_writes(self, seconds: float) -> None:
        """Fail over to a replica that lacks the writes of the last seconds."""

    async def restart(self) -> None:
        """Kill a server and start it at once, before another takes over."""
        raise NotImplementedError

    async def fail_over(self) -> None:
        """Have a replica take over, as for maintenance: the old primary stays up."""
        raise NotImplementedError

    async def move_slot(self) -> None:
        """Move a slot with a log to another server, in a cluster."""
        raise NotImplementedError

    @abstractmethod
    async def close(self) -> None:
        """End everything."""


class OneServer(Servers):
    """One server behind a proxy, with the disk in step, and a replica when it is to lose writes."""

    lossy = frozenset({"empty", "lose writes"})

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self._server = _server(folder / "server-0")
        self._number = 0

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)
        self._proxy = await Proxy(self._server.port).__aenter__()
        self.url = f"redis://127.0.0.1:{self._proxy.port}"

    async def kill(self) -> None:
        self._server.kill()
        await asyncio.sleep(self._random.uniform(0, 0.3))
        await asyncio.to_thread(self._server.start)

    async def cut(self) -> None:
        self._proxy.cut()

    async def stall(self, seconds: float) -> None:
        await self._proxy.stall(seconds)

    async def empty(self) -> None:
        with self._server.client() as client:
            await asyncio.to_thread(client.flushall)

    async def lose_writes(self, seconds: float) -> None:
        self._number += 1
        replica = _server(self._folder / f"server-{self._number}")
        await asyncio.to_thread(replica.start)
        with replica.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", self._server.port)
            await _until(lambda: "up" in str(client.info("replication")["master_link_status"]))
            # From here on, it misses what is acknowledged.
            client.execute_command("REPLICAOF", "NO", "ONE")
        await asyncio.sleep(seconds)
        old, self._server = self._server, replica
        old.close()
        self._proxy.target = replica.port
        self._proxy.cut()

    async def close(self) -> None:
        await self._proxy.__aexit__()
        self._server.close()


class ClusterServers(Servers):
    """Three masters with a replica each, which take over by themselves: that may lose writes."""

    lossy = frozenset({"empty", "lose writes", "kill server", "stall"})
    faults = ("restart", "fail over", "move slot")

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self._nodes = [
            _server(
                folder / f"node-{number}",
                cluster_enabled="yes",
                cluster_port=str(free_port()),
                cluster_node_timeout=str(NODE_TIMEOUT_MS),
                # A replica that was cut off is promoted all the same.
                cluster_replica_validity_factor="0",
                cluster_replica_no_failover="no",
            )
            for number in range(2 * MASTERS)
        ]

    async def start(self) -> None:
        for node in self._nodes:
            await asyncio.to_thread(node.start)
        first, masters = self._nodes[0], self._nodes[:MASTERS]
        for number, node in enumerate(self._nodes):
            with node.client() as client:
                _ask(client, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                if node is not first:
                    _ask(client, "CLUSTER", "MEET", "127.0.0.1", first.port, first.bus_port)
        for number, node in enumerate(masters):
            begin, end = number * SLOTS // MASTERS, (number + 1) * SLOTS // MASTERS - 1
            with node.client() as client:
                _ask(client, "CLUSTER", "ADDSLOTSRANGE", begin, end)
        for master, node in zip(masters, self._nodes[MASTERS:], strict=True):
            with master.client() as client:
                name = _ask(client, "CLUSTER", "MYID")
            await _until(partial(_knows, node, name))
            with node.client() as client:
                _ask(client, "CLUSTER", "REPLICATE", name)
        await self._whole()
        self.url = "redis+cluster://" + first.url.partition("://")[2]

    async def kill(self) -> None:
        master, _ = self._pair()
        master.kill()
        await self._taken_over(master)
        await asyncio.to_thread(master.start)
        await self._whole()

    async def cut(self) -> None:
        for node in self._nodes:
            _cut(node)

    async def stall(self, seconds: float) -> None:
        master, _ = self._pair()
        master.suspend()
        await asyncio.sleep(seconds)
        master.resume()
        await self._whole()

    @asynccontextmanager
    async def suspended_owner(self, key: str) -> AsyncIterator[None]:
        """Suspend the master that has the slot of `key`, and let it continue at the end.

        Its replica has all that it had acknowledged.
        """
        master = self._owner(key)
        await _until(partial(_is_in_step, master))
        master.suspend()
        try:
            yield
        finally:
            master.resume()

    async def restart(self) -> None:
        master, _ = self._pair()
        master.kill()
        await asyncio.to_thread(master.start)
        await self._whole()

    async def fail_over(self, key: str = LOG) -> None:
        """Have the replica of the slot of `key` take over."""
        master, replica = self._pair(self._owner(key))
        with replica.client() as client:
            _ask(client, "CLUSTER", "FAILOVER")
        await _until(lambda: _role(replica) == "master" and _role(master) == "slave")
        await self._whole()

    async def move_slot(self) -> None:
        """Move the slot of a log, key by key, while it is written to."""
        source = self._owner(LOG)
        target = self._random.choice([each for each in self._masters() if each is not source])
        await asyncio.to_thread(self._move, self._slot(LOG), source, target)
        await self._whole()

    def _move(self, slot: int, source: ValkeyServer, target: ValkeyServer) -> None:
        with source.client() as old, target.client() as new:
            old_name, new_name = (_ask(each, "CLUSTER", "MYID") for each in (old, new))
            _ask(new, "CLUSTER", "SETSLOT", slot, "IMPORTING", old_name)
            _ask(old, "CLUSTER", "SETSLOT", slot, "MIGRATING", new_name)
            while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                old.migrate("127.0.0.1", target.port, keys, 0, 5_000)
            for client in (new, old):
                _ask(client, "CLUSTER", "SETSLOT", slot, "NODE", new_name)

    def _slot(self, key: str) -> int:
        with self._masters()[0].client() as client:
            return int(_ask(client, "CLUSTER", "KEYSLOT", key))

    def _owner(self, key: str) -> ValkeyServer:
        slot = self._slot(key)
        return next(each for each in self._masters() if _has_slot(each, slot))

    async def empty(self) -> None:
        for node in self._masters():
            with node.client() as client:
                await asyncio.to_thread(client.flushall)

    async def lose_writes(self, seconds: float) -> None:
        master, replica = self._pair()
        with replica.client() as client:
            # Its next connection to the master is refused there.
            client.config_set("masterauth", "wrong")
            _ask(client, "CLIENT", "KILL", "TYPE", "master")
            await asyncio.sleep(seconds)
            master.kill()
            await self._taken_over(master)
            client.config_set("masterauth", "")
        await asyncio.to_thread(master.start)
        await self._whole()

    async def close(self) -> None:
        for node in self._nodes:
            node.close()

    def _masters(self) -> list[ValkeyServer]:
        return [node for node in self._nodes if _role(node) == "master"]

    def _pair(self, master: ValkeyServer | None = None) -> tuple[ValkeyServer, ValkeyServer]:
        """Return a master and its replica, which is in step."""
        master = master or self._random.choice(self._masters())
        with master.client() as client:
            ports = [int(each["port"]) for each in _replicas(client)]
        (replica,) = (node for node in self._nodes if node.port in ports)
        return master, replica

    async def _taken_over(self, gone: ValkeyServer) -> None:
        others = [node for node in self._nodes if node is not gone]
        await _until(
            lambda: (
                sum(_role(node) == "master" for node in others) == MASTERS
                and all(map(_is_ok, others))
            )
        )

    async def _whole(self) -> None:
        """Return once each master has a replica that is in step."""

        def is_whole() -> bool:
            masters = self._masters()
            return (
                len(masters) == MASTERS
                and all(map(_is_ok, self._nodes))
                and all(map(_is_followed, masters))
            )

        await _until(is_whole)


class SentinelServers(Servers):
    """A primary with a replica, and three Sentinels that have either of them take over."""

    lossy = frozenset({"empty", "lose writes", "kill server", "stall", "fail over"})
    faults = ("restart", "fail over")

    def __init__(self, folder: Path, chance: random.Random, **settings: str) -> None:
        super().__init__(folder, chance)
        self._nodes = [_server(folder / f"node-{number}", **settings) for number in range(2)]
        self._sentinels: list[tuple[int, subprocess.Popen[bytes]]] = []

    async def start(self) -> None:
        first, second = self._nodes
        for node in self._nodes:
            await asyncio.to_thread(node.start)
        with second.client() as client:
            client.replicaof("127.0.0.1", first.port)
        await _until(lambda: _is_followed(first))
        for number in range(3):
            port = free_port()
            path = self._folder / f"sentinel-{number}.conf"
            path.write_text(
                f"port {port}\nbind 127.0.0.1\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {first.port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} {NODE_TIMEOUT_MS}\n"
                f"sentinel failover-timeout {SERVICE} {FAILOVER_MS}\n"
            )
            self._sentinels.append((port, _sentinel(path)))
        await _until(lambda: all(map(self._is_complete, self._ports)))
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self.url = f"redis+sentinel://{hosts}/{SERVICE}"

    @property
    def primary(self) -> ValkeyServer:
        """The one that the Sentinels name."""
        with redis.Redis(port=self._ports[0]) as client:
            port = int(client.sentinel_master(SERVICE)["port"])
        return next(node for node in self._nodes if node.port == port)

    async def restart(self) -> None:
        server = self.primary
        server.kill()
        await asyncio.to_thread(server.start)
        await self._whole()

    async def fail_over(self) -> None:
        await self.begin_fail_over()
        await self._whole()

    async def begin_fail_over(self) -> ValkeyServer:
        """Return the new primary once a Sentinel names it: the old one does not know yet."""
        before = self.primary
        with redis.Redis(port=self._random.choice(self._ports)) as client:
            async with asyncio.timeout(PATIENCE_S):
                while self.primary is before:
                    # A busy machine makes a Sentinel give one up.
                    with contextlib.suppress(redis.ResponseError):
                        _ask(client, "SENTINEL", "FAILOVER", SERVICE)
                    with contextlib.suppress(TimeoutError):
                        await _until(lambda: self.primary is not before, 3 * FAILOVER_MS / 1000)
        return self.primary

    async def _whole(self) -> None:
        """Return once the Sentinels agree, and the primary has a replica that is in step."""
        await _until(lambda: all(map(self._is_complete, self._ports)))

    async def kill(self) -> None:
        before = self.primary
        before.kill()
        await _until(lambda: self.primary is not before)
        await asyncio.to_thread(before.start)
        await self._whole()

    async def cut(self) -> None:
        for node in self._nodes:
            _cut(node)

    async def stall(self, seconds: float) -> None:
        before = self.primary
        before.suspend()
        await asyncio.sleep(seconds)
        before.resume()
        await self._whole()

    async def empty(self) -> None:
        with self.primary.client() as client:
            await asyncio.to_thread(client.flushall)

    async def lose_writes(self, seconds: float) -> None:
        """The primary goes on for a while after its replica has taken over."""
        await self.begin_fail_over()
        await asyncio.sleep(seconds)
        await self._whole()

    async def close(self) -> None:
        for _, process in self._sentinels:
            process.kill()
            process.wait()
        for node in self._nodes:
            node.close()

    @property
    def _ports(self) -> list[int]:
        return [port for port, _ in self._sentinels]

    def _is_complete(self, port: int) -> bool:
        try:
            with redis.Redis(port=port) as client:
                master = client.sentinel_master(SERVICE)
                (replica,) = client.sentinel_slaves(SERVICE)
            (node,) = (each for each in self._nodes if each.port == int(master["port"]))
            return (
                int(master["num-other-sentinels"]) == 2
                and not replica["is_disconnected"]
                and not replica["is_sdown"]
                and _role(node) == "master"
                and _is_followed(node)
            )
        except (redis.RedisError, ValueError):
            return False


def _server(folder: Path, **settings: str) -> ValkeyServer:
    folder.mkdir()
    # So that a restart loses nothing that was acknowledged.
    settings |= {"appendfsync": "always", "repl_diskless_sync_delay": "0"}
    return ValkeyServer(folder, is_on_port=True, **settings)


def _sentinel(path: Path) -> subprocess.Popen[bytes]:
    with path.with_suffix(".log").open("ab") as log:
        return subprocess.Popen([str(BINARY), str(path), "--sentinel"], stdout=log, stderr=log)


def _cut(node: ValkeyServer) -> None:
    with node.client() as client:
        for kind in ("normal", "pubsub"):
            _ask(client, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def _ask(client: redis.Redis, *command: str | int) -> str:
    reply = client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it so
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def _knows(node: ValkeyServer, name: str) -> bool:
    with node.client() as client:
        return name in _ask(client, "CLUSTER", "NODES")


def _has_slot(node: ValkeyServer, slot: int) -> bool:
    with node.client() as client:
        (own,) = (
            line for line in _ask(client, "CLUSTER", "NODES").splitlines() if "myself" in line
        )
    return any(
        int(begin) <= slot <= int(end or begin)
        for begin, _, end in (part.partition("-") for part in own.split()[8:])
    )


def _role(node: ValkeyServer) -> str:
    try:
        with node.client() as client:
            return str(client.info("replication")["role"])
    except redis.RedisError:
        return ""


def _is_ok(node: ValkeyServer) -> bool:
    try:
        with node.client() as client:
            return "cluster_state:ok" in _ask(client, "CLUSTER", "INFO")
    except redis.RedisError:
        return False


def _is_followed(master: ValkeyServer) -> bool:
    with master.client() as client:
        return any(each["state"] == "online" for each in _replicas(client))


def _is_in_step(master: ValkeyServer) -> bool:
    with master.client() as client:
        written = client.info("replication")["master_repl_offset"]
        return any(int(each["offset"]) >= written for each in _replicas(client))


def _replicas(client: redis.Redis) -> list[dict[str, str]]:
    info = client.info("replication")
    return [
        value for name, value in info.items() if name.startswith("slave") and name[5:].isdigit()
    ]


async def _until(is_so: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - servers set no event here
            await asyncio.sleep(0.2)
