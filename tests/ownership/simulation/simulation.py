"""A service of several workers with its members, and what may happen to it."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field

import httpx
from fastapi import FastAPI

from examples.join_group.app import create_app
from examples.join_group.client import Generation, GroupMember
from examples.join_group.settings import Settings
from purgatory import Purgatory
from purgatory.ownership.lease import LeaseStep
from tests.ownership.generation_ledger import GenerationLedger
from tests.ownership.simulation.host import Host, World
from tests.ownership.simulation.network import (
    RedisHost,
    RemoteLeaseStore,
    SimulatedTransport,
    json_of,
)

WORKERS = ("w1", "w2", "w3", "w4")
GROUPS = ("g1", "g2", "g3")
MEMBERS = 3
LEASE_S = 2.0
SESSION_S = 10.0
REBALANCE_S = 20.0
HEARTBEAT_S = 1.0
RETENTION_S = 3.0


class Worker:
    """One worker, which comes back with the same address and an empty memory after a kill."""

    def __init__(self, world: World, redis: RedisHost, name: str) -> None:
        self.name = name
        self._world = world
        self._redis = redis
        self.start()

    def start(self) -> None:
        """Start a new process."""
        self.host = Host(self._world, self.name)
        self.store = RemoteLeaseStore(self._redis, self.host)
        self.purgatory = Purgatory("join-group", clock=self._world.clock)
        # Or the collector would end its operations, in whatever thread and test it runs.
        self.host.on_closed.append(self.purgatory._timer.close)
        settings = Settings(
            initial_rebalance_delay_ms=500,
            min_session_timeout_ms=4_000,
            empty_group_retention_ms=round(RETENTION_S * 1000),
            address=f"http://{self.name}",
            lease_ms=round(LEASE_S * 1000),
        )
        self.app = create_app(settings, purgatory=self.purgatory, lease_store=self.store)
        self._serving = self.host.start(self._serve())

    @property
    def is_up(self) -> bool:
        """True iff it accepts connections, which a suspended process does too."""
        return not self.host.is_dead

    def owns(self, group: str) -> bool:
        """Return True iff it believes that it owns the group."""
        lease = self.app.state.ownership._leases.get(group)
        return self.is_up and lease is not None and lease.is_valid

    def stop(self) -> None:
        """SIGTERM: drain, release, exit."""
        self._stopping = self.host.start(self._stop())

    async def _serve(self) -> None:
        await self.purgatory.__aenter__()
        await self.app.state.ownership.open()

    async def _stop(self) -> None:
        await self.purgatory.drain()
        await self.app.state.ownership.close()
        self._world.after(0, self.host.kill)


@dataclass(slots=True)
class Report:
    """What was done and seen."""

    faults: Counter[str] = field(default_factory=Counter)
    generations: int = 0
    owners: int = 0
    slowest: float = 0.0
    """Seconds from a kill or stop of an owner until every member had joined again."""


class Simulation:
    """Three groups of three members each, on four workers."""

    def __init__(self, seed: int) -> None:
        # The code under test draws from the global one.
        random.seed(seed)
        self.world = World(seed)
        self.redis = RedisHost(self.world)
        self.workers = {name: Worker(self.world, self.redis, name) for name in WORKERS}
        self.ledger = GenerationLedger(knows_commits=True)
        self.redis.on_commit = self._on_commit
        self.report = Report()
        self._client = Host(self.world, "members")
        self._transport = SimulatedTransport(self._client, self._find, self._on_response)
        # {group: {member: its latest generation}}
        self._generations: dict[str, dict[str, Generation]] = {group: {} for group in GROUPS}
        self._members = {
            (group, f"m{at}"): self._start_member(group, f"m{at}")
            for group in GROUPS
            for at in range(MEMBERS)
        }

    def close(self) -> None:
        """End every host."""
        for worker in self.workers.values():
            worker.host.kill()
        self.check_hosts()
        self._client.kill()

    def check_hosts(self) -> None:
        """Note errors that no code handled, and members that gave up."""
        for host in [self._client, *(worker.host for worker in self.workers.values())]:
            self.ledger.faults += [f"{host.name}: {error}" for error in host.errors]
            host.errors.clear()
        for task in self._members.values():
            if task.done():
                self.ledger.faults.append(f"a member gave up: {task.exception()!r}")

    def settle(self, seconds: float) -> float:
        """Let every group settle in one generation; return the seconds that it took."""
        began = self.world.now
        if not self.world.run(seconds, self._is_settled):
            self.ledger.faults.append(f"not settled after {seconds} s: {self._generations}")
        return self.world.now - began

    def rejoin(self, group: str, epoch: int, seconds: float) -> float:
        """Let every member of `group` join under a higher epoch; return how long it took."""
        began = self.world.now

        def is_done() -> bool:
            latest = self._generations[group].values()
            return (
                len(latest) == MEMBERS
                and len({got.number for got in latest}) == 1
                and all(got.epoch > epoch for got in latest)
            )

        if not self.world.run(seconds, is_done):
            self.ledger.faults.append(
                f"{group}: not all joined again in {seconds} s after epoch {epoch}: "
                f"{self._generations[group]}"
            )
        return self.world.now - began

    def owner(self, group: str) -> Worker | None:
        """Return the worker that owns a group."""
        owners = [worker for worker in self.workers.values() if worker.owns(group)]
        if len(owners) > 1:
            self.ledger.faults.append(f"{group}: owned by {[owner.name for owner in owners]}")
        return owners[0] if owners else None

    def epoch(self, group: str) -> int:
        """Return the epoch of the latest generation that a member has."""
        return max((got.epoch for got in self._generations[group].values()), default=0)

    def kill(self, worker: Worker, seconds: float) -> None:
        """Kill a worker; it comes back."""
        if worker.is_up:
            self.report.faults["kill"] += 1
            worker.host.kill()
            self.world.after(seconds, worker.start)

    def stop(self, worker: Worker, seconds: float) -> None:
        """Suspend a worker for a while."""
        if worker.is_up and not worker.host.is_suspended:
            self.report.faults["stop"] += 1
            host = worker.host
            host.suspend()
            self.world.after(seconds, host.resume)

    def restart(self, worker: Worker, seconds: float) -> None:
        """Stop a worker as a deploy does; it comes back."""
        if worker.is_up and not worker.host.is_suspended:
            self.report.faults["restart"] += 1
            host = worker.host
            worker.stop()

            def start() -> None:
                # One that was suspended meanwhile is killed in the end, as by a supervisor.
                host.kill()
                worker.start()

            self.world.after(seconds, start)

    def replace_member(self, group: str) -> None:
        """Let a member crash, and another one join: the others wait until its session ends."""
        key = group, f"m{self.world.random.randrange(MEMBERS)}"
        self._crash(*key)
        self._members[key] = self._start_member(*key)

    def replace_members(self, group: str, seconds: float) -> None:
        """Let every member of a group crash, and others come when it may just be forgotten."""
        keys = [key for key in self._members if key[0] == group]
        for key in keys:
            self._crash(*key)

        def start() -> None:
            for key in keys:
                self._members[key] = self._start_member(*key)

        self.world.after(seconds, start)

    def cut_redis(self, worker: Worker, seconds: float) -> None:
        """Cut a worker off from Redis."""
        self.report.faults["cut from Redis"] += 1
        store = worker.store
        store.is_cut = True
        self.world.after(seconds, lambda: setattr(store, "is_cut", False))

    def cut_members(self, worker: Worker, seconds: float) -> None:
        """Cut a worker off from the members."""
        self.report.faults["cut from members"] += 1
        self._transport.cut.add(worker.name)
        self.world.after(seconds, lambda: self._transport.cut.discard(worker.name))

    def stop_redis(self, seconds: float) -> None:
        """Restart Redis, which keeps what it has."""
        self.report.faults["Redis down"] += 1
        self.redis.is_down = True
        self.world.after(seconds, lambda: setattr(self.redis, "is_down", False))

    def flush_redis(self) -> None:
        """Lose everything in Redis."""
        self.report.faults["FLUSHALL"] += 1
        self.redis.model.flush()

    def fail_over(self, seconds: float) -> None:
        """Let a replica take over that has not seen the last few seconds."""
        self.report.faults["failover with lost writes"] += 1
        replica = self.redis.model.copy()

        def promote() -> None:
            self.redis.model.fail_over(replica)
            # A commit that was delayed until now may be the first of those that are known again.
            self.ledger.committed.clear()

        self.world.after(seconds, promote)

    def finish(self) -> Report:
        """Check what the whole run has to fulfil, and return what was seen."""
        self.check_hosts()
        self.ledger.check_order()
        self.report.generations = len(self.ledger.handed_out)
        self.report.owners = len(
            {
                (group, epoch)
                for (group, _), all_ in self.ledger.handed_out.items()
                for epoch in all_
            }
        )
        return self.report

    def _is_settled(self) -> bool:
        return len(self._members) == MEMBERS * len(GROUPS) and all(
            len(latest) == MEMBERS
            and len({got.number for got in latest.values()}) == 1
            and self._are_current(group, latest)
            for group, latest in self._generations.items()
        )

    def _are_current(self, group: str, latest: dict[str, Generation]) -> bool:
        owner = self.owner(group)
        if owner is None or owner.host.is_suspended:
            return False
        found = owner.app.state.coordinator.groups.get(group)
        if found is None:
            return False
        partitions = [number for got in latest.values() for number in got.partitions]
        return (
            found.state == "Stable"
            and all(got.number == found.generation for got in latest.values())
            and sorted(partitions) == list(range(12))
        )

    def _crash(self, group: str, name: str) -> None:
        self._client.deliver(self._members.pop((group, name)).cancel)
        # The next one of this name is another member.
        self.ledger.latest.pop((group, name), None)
        self._generations[group].pop(name, None)

    def _start_member(self, group: str, name: str) -> asyncio.Task[None]:
        def on_generation(name: str, generation: Generation) -> None:
            self._generations[group][name] = generation
            self.ledger.receive(group, name, generation.number)

        member = GroupMember(
            http=httpx.AsyncClient(transport=self._transport),
            name=name,
            group_id=group,
            workers=[f"http://{worker}" for worker in WORKERS],
            session_timeout=SESSION_S,
            rebalance_timeout=REBALANCE_S,
            heartbeat_interval=HEARTBEAT_S,
            on_generation=on_generation,
        )
        return self._client.start(member.run())

    def _on_commit(self, step: LeaseStep) -> None:
        if step.state is not None:
            self.ledger.commit(step.name, json.loads(step.state)[0], step.epoch)

    def _find(self, name: str) -> tuple[Host, FastAPI] | None:
        worker = self.workers[name]
        return (worker.host, worker.app) if worker.is_up else None

    def _on_response(self, request: httpx.Request, status: int, body: bytes) -> None:
        path = request.url.path
        if status == 200 and path.endswith("/join"):
            joined = json_of(body)
            group = path.split("/")[2]
            self.ledger.hand_out(group, joined["generation"], joined["epoch"])
        elif status == 500:
            self.ledger.faults.append(f"{path}: 500 {body!r}")
