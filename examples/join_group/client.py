"""A member of a group, over HTTP (Kafka: ConsumerCoordinator)."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of the group as one member knows it, after a join and a sync."""

    number: int
    epoch: int
    """The fencing epoch of the worker that handed it out; 0 for a single worker."""
    is_leader: bool
    partitions: list[int]


@dataclass(slots=True, kw_only=True)
class GroupMember:
    """Joins, syncs and sends heartbeats until it is cancelled; joins again when required.

    It stays with the worker that owns the group. While a request of it is parked there, it asks the
    others from time to time whether that is still so: a worker that hangs does not tell. Times are
    in seconds.
    """

    http: httpx.AsyncClient
    name: str
    group_id: str
    workers: Sequence[str]
    """The addresses of all workers. If one is not available, the next is asked instead."""
    partitions: int = 12
    """The number of partitions of the topic, which the leader assigns one by one in turn."""
    session_timeout: float = 10.0
    rebalance_timeout: float = 60.0
    heartbeat_interval: float = 3.0
    on_generation: Callable[[str, Generation], object] = lambda name, generation: None
    """Called with the name of the member and what it has, after each join and sync."""
    generation: Generation | None = None
    member_id: str = ""
    worker: str = ""
    """The one that owns the group, as far as is known."""

    def __post_init__(self) -> None:
        """Begin at any worker."""
        self.worker = self.worker or random.choice(self.workers)

    async def run(self) -> None:
        """Run until cancelled; raise httpx.HTTPStatusError if joining again is of no use."""
        while True:
            try:
                self.generation = await self.sync(await self.join())
                self.on_generation(self.name, self.generation)
                while True:
                    await asyncio.sleep(self.heartbeat_interval)
                    await self.post("heartbeat", generation=self.generation.number)
            except (httpx.RequestError, TimeoutError):
                await self._next_worker()
            except httpx.HTTPStatusError as failure:
                code = code_of(failure.response)
                if failure.response.status_code in (307, 503):
                    await self._next_worker()
                elif code == "UNKNOWN_MEMBER_ID":
                    self.member_id = ""
                elif code not in {"REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION"}:
                    raise

    async def join(self) -> dict[str, Any]:
        """Join, or join again; return the response, which comes when every member has joined."""
        joined: dict[str, Any] = await self._parked(
            "join",
            client_id=self.name,
            protocols={"roundrobin": ""},
            session_timeout_ms=round(self.session_timeout * 1000),
            rebalance_timeout_ms=round(self.rebalance_timeout * 1000),
        )
        self.member_id = joined["member_id"]
        return joined

    async def sync(self, joined: dict[str, Any]) -> Generation:
        """Return the generation with the member's partitions; as the leader, assign them all."""
        # Only the leader was given the members.
        ids = [member_id for member_id, _, _ in joined["members"]]
        all_ = range(self.partitions)
        synced = await self._parked(
            "sync",
            generation=joined["generation"],
            assignments={
                each: json.dumps(list(all_[at :: len(ids)])) for at, each in enumerate(ids)
            },
        )
        partitions = json.loads(synced["assignment"] or "[]")
        return Generation(joined["generation"], joined["epoch"], bool(ids), partitions)

    async def _next_worker(self) -> None:
        """Go on at the next worker, after a pause that spreads the members."""
        workers = self.workers
        at = workers.index(self.worker) + 1 if self.worker in workers else 0
        self.worker = workers[at % len(workers)]
        await asyncio.sleep(random.uniform(0.5, 1) * self.session_timeout / 20)

    async def _parked(self, action: str, **body: Any) -> Any:
        """Return the response to a request that parks; TimeoutError if its worker hangs."""
        # Longer than the server's timeout: a member that gives up earlier loses its place.
        timeout = self.rebalance_timeout + 30
        sending = asyncio.create_task(self.post(action, timeout, **body))
        try:
            while not sending.done():
                await asyncio.wait([sending], timeout=self.heartbeat_interval)
                if not sending.done() and await self._is_owned_elsewhere():
                    raise TimeoutError(f"{self.worker} does not own the group any more")
            return await sending
        finally:
            sending.cancel()

    async def _is_owned_elsewhere(self) -> bool:
        """Return True iff another worker says that the one that we wait for has lost the group."""
        others = [worker for worker in self.workers if worker != self.worker]
        path = f"/groups/{self.group_id}"
        for worker in random.sample(others, len(others)):
            try:
                response = await self.http.get(worker + path, timeout=self._patience)
            except httpx.RequestError:
                continue
            if response.status_code == 307:
                return response.headers["location"] != self.worker + path
            return response.status_code in (200, 404)
        return False

    async def post(self, action: str, timeout: float | None = None, **body: Any) -> Any:
        """Return the response to a request; raise httpx.HTTPError if it fails."""
        path = f"/groups/{self.group_id}/{action}"
        body["member_id"] = self.member_id
        timeout = timeout or self._patience
        # Workers that redirect to each other are asked again later.
        for _ in range(1 + len(self.workers)):
            response = await self.http.post(self.worker + path, json=body, timeout=timeout)
            if response.status_code != 307:
                break
            self.worker = response.headers["location"].removesuffix(path)
        response.raise_for_status()
        return response.json() if response.content else None

    @property
    def _patience(self) -> float:
        """How long a request that does not park may take: any worker may hang."""
        return self.session_timeout / 4


def code_of(response: httpx.Response) -> str:
    """Return the name of Kafka's error in a response, "" if it has another one."""
    is_problem = response.headers.get("content-type") == "application/problem+json"
    return str(response.json()["detail"]).partition(":")[0] if is_problem else ""


class Members:
    """Members of one group in this process, each in a task of its own."""

    def __init__(self, http: httpx.AsyncClient, **options: Any) -> None:
        """Send requests by `http`; the options are those of GroupMember."""
        self._options = {"http": http, "on_generation": self.on_generation, **options}
        self._running: dict[str, tuple[GroupMember, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()

    def start(self, *names: str) -> None:
        """Start members."""
        for name in names:
            member = GroupMember(name=name, **self._options)
            self._running[name] = member, asyncio.create_task(member.run())
            self._running[name][1].add_done_callback(lambda task: self._changed.set())

    async def stop(self, *names: str, leave: bool = False) -> None:
        """Let members leave the group, or crash: the coordinator is not told."""
        for name in names:
            member, task = self._running.pop(name)
            task.cancel()
            await asyncio.wait([task])
            if leave:
                await member.post("leave")

    def on_generation(self, name: str, generation: Generation) -> None:
        """Take note that a member has its partitions."""
        self._changed.set()

    async def settled(self, *, after: int = 0) -> dict[str, Generation]:
        """Return the generation above `after` that all members have; raise if one has failed."""
        while True:
            self._changed.clear()
            members = [member for member, _ in self._running.values()]
            found = {each.name: each.generation for each in members if each.generation is not None}
            numbers = {each.number for each in found.values()}
            if len(found) == len(members) and len(numbers) == 1 and min(numbers) > after:
                return found
            await self._changed.wait()
            for _, task in self._running.values():
                if task.done():
                    task.result()
