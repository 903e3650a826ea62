"""A member of a group, over HTTP (Kafka: ConsumerCoordinator)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

Assignor = Callable[[Sequence[str], int], dict[str, list[int]]]


def assign_ranges(member_ids: Sequence[str], partitions: int) -> dict[str, list[int]]:
    """Return a contiguous range for each member; the first members get one more if needed."""
    share, extra = divmod(partitions, len(member_ids))
    assignment = {}
    start = 0
    for position, member_id in enumerate(sorted(member_ids)):
        end = start + share + (position < extra)
        assignment[member_id] = list(range(start, end))
        start = end
    return assignment


def assign_round_robin(member_ids: Sequence[str], partitions: int) -> dict[str, list[int]]:
    """Return the partitions assigned one by one in turn."""
    ordered = sorted(member_ids)
    step = len(ordered)
    return {
        member_id: list(range(position, partitions, step))
        for position, member_id in enumerate(ordered)
    }


ASSIGNORS: Final[dict[str, Assignor]] = {"range": assign_ranges, "roundrobin": assign_round_robin}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """The options of a member; times in seconds."""

    group_id: str
    partitions: int
    """The number of partitions of the topic, which the leader assigns."""
    protocols: Sequence[str] = ("range", "roundrobin")
    session_timeout: float = 10.0
    rebalance_timeout: float = 60.0
    heartbeat_interval: float = 3.0
    workers: Sequence[str] = ()
    """The addresses of several workers. If one is not available, the next is asked instead."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of the group as one member knows it, after a join and a sync."""

    number: int
    protocol: str
    is_leader: bool
    partitions: tuple[int, ...]
    epoch: int = 0
    """The fencing epoch of the worker that handed it out; 0 for a single worker."""


class RequestFailed(Exception):
    """The coordinator responded with an error; `kind` is the last part of the problem's type."""

    def __init__(self, response: httpx.Response) -> None:
        """Read the problem details of a response."""
        problem: dict[str, Any] = response.json()
        self.kind: str = problem["type"].rpartition("/")[2]
        self.detail: str = problem["detail"]
        self.status: int = response.status_code
        self.retry_after: str | None = response.headers.get("retry-after")
        super().__init__(f"{self.kind}: {self.detail}")


class WorkerNotAvailable(Exception):
    """One of several workers does not respond, does not own the group, or is shutting down."""


class GroupMember:
    """Joins, syncs and sends heartbeats until it leaves; joins again when required.

    `run` is the loop of the member, in its own task. Cancelling it simulates a crash: the
    coordinator is not notified.

    Of several workers it stays with the one that owns the group. While a request of it is parked
    there, it asks the others from time to time whether that is still so: a worker that hangs does
    not tell.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        name: str,
        options: MemberOptions,
        *,
        on_generation: Callable[[GroupMember, Generation], object],
    ) -> None:
        """Call `on_generation(member, generation)` whenever the member has its partitions."""
        self.name = name
        self.options = options
        self.member_id: str | None = None
        self.generation: Generation | None = None
        # When the last successful request was sent: the coordinator received it after that.
        self.last_contact = 0.0
        self._http = http
        self._on_generation = on_generation
        # The worker that owns the group, as far as is known; "" for a single worker.
        self._worker = random.choice(options.workers) if options.workers else ""

    async def run(self) -> None:
        """Run until cancelled.

        Raises RequestFailed if joining again is of no use, and httpx.HTTPError without a response.
        """
        while True:
            try:
                await self._join_and_sync()
                await self._heartbeats()
            except RequestFailed as failure:
                self._prepare_to_rejoin(failure)
            except WorkerNotAvailable:
                await self._next_worker()

    async def leave(self) -> None:
        """Leave the group; cancel `run` first."""
        if self.member_id is not None:
            try:
                await self._post("leave", {"member_id": self.member_id})
            except WorkerNotAvailable:
                # Its session ends by itself.
                pass
            self.member_id = self.generation = None

    async def join(self) -> dict[str, Any]:
        """Join, or join again; return the response, which comes when every member has joined."""
        options = self.options
        response: dict[str, Any] = await self._parked(
            "join",
            {
                "member_id": self.member_id,
                "client_id": self.name,
                "protocols": [{"name": name} for name in options.protocols],
                "session_timeout": options.session_timeout,
                "rebalance_timeout": options.rebalance_timeout,
            },
        )
        self.member_id = response["member_id"]
        return response

    async def sync(self, joined: dict[str, Any]) -> dict[str, Any]:
        """Return the partitions of the member; as the leader, assign all partitions."""
        response: dict[str, Any] = await self._parked(
            "sync",
            {
                "member_id": self.member_id,
                "generation": joined["generation"],
                "assignments": self._assignments(joined),
            },
        )
        return response

    async def heartbeat(self, generation: int) -> None:
        """Send a heartbeat."""
        await self._post("heartbeat", {"member_id": self.member_id, "generation": generation})

    async def _join_and_sync(self) -> None:
        joined = await self.join()
        synced = await self.sync(joined)
        self.generation = Generation(
            number=synced["generation"],
            protocol=synced["protocol"],
            is_leader=joined["leader"] == self.member_id,
            partitions=tuple(synced["partitions"]),
            epoch=joined["epoch"],
        )
        self._on_generation(self, self.generation)

    async def _heartbeats(self) -> None:
        assert self.generation is not None
        while True:
            await asyncio.sleep(self.options.heartbeat_interval)
            while not await self._is_alive(self.generation.number):
                await self._next_worker()

    async def _is_alive(self, generation: int) -> bool:
        try:
            await self.heartbeat(generation)
        except WorkerNotAvailable:
            return False
        return True

    async def _next_worker(self) -> None:
        """Go on at the next worker, after a pause that spreads the members."""
        workers = self.options.workers
        at = workers.index(self._worker) + 1 if self._worker in workers else 0
        self._worker = workers[at % len(workers)]
        await asyncio.sleep(random.uniform(0.5, 1) * self.options.session_timeout / 20)

    def _prepare_to_rejoin(self, failure: RequestFailed) -> None:
        """Prepare to join again; raise `failure` if that is of no use."""
        if failure.kind == "unknown-member-id":
            self.member_id = None
        elif failure.kind not in {"rebalance-in-progress", "illegal-generation"}:
            raise failure

    def _assignments(self, joined: dict[str, Any]) -> dict[str, list[int]]:
        if joined["leader"] != self.member_id:
            return {}
        member_ids = [member["member_id"] for member in joined["members"]]
        return ASSIGNORS[joined["protocol"]](member_ids, self.options.partitions)

    async def _parked(self, action: str, body: dict[str, Any]) -> Any:
        """Return the response to a request that parks, unless its worker hangs meanwhile."""
        # Longer than the server's timeout: a member that gives up earlier loses its place.
        timeout = self.options.rebalance_timeout + 30
        if not self.options.workers:
            return await self._post(action, body, timeout)
        sending = asyncio.create_task(self._post(action, body, timeout))
        try:
            while not sending.done():
                await asyncio.wait([sending], timeout=self.options.heartbeat_interval)
                if not sending.done() and await self._is_owned_elsewhere():
                    raise WorkerNotAvailable(f"{self._worker} does not own the group any more")
            return await sending
        finally:
            sending.cancel()

    async def _is_owned_elsewhere(self) -> bool:
        """Return True iff another worker says that the one that we wait for has lost the group."""
        others = [worker for worker in self.options.workers if worker != self._worker]
        path = f"/groups/{self.options.group_id}"
        for worker in random.sample(others, len(others)):
            try:
                response = await self._http.get(worker + path, timeout=self._patience)
            except httpx.TransportError:
                continue
            if response.status_code == 307:
                return _worker_of(response) != self._worker
            return response.status_code in (200, 404)
        return False

    async def _post(self, action: str, body: dict[str, Any], timeout: float | None = None) -> Any:
        sent_at = asyncio.get_running_loop().time()
        path = f"/groups/{self.options.group_id}/{action}"
        response = await self._send(path, body, timeout or self._patience)
        if response.headers.get("content-type") == "application/problem+json":
            failure = RequestFailed(response)
            if self.options.workers and failure.status == 503:
                raise WorkerNotAvailable(str(failure))
            raise failure
        response.raise_for_status()
        self.last_contact = sent_at
        return response.json() if response.content else None

    async def _send(self, path: str, body: dict[str, Any], timeout: float) -> httpx.Response:
        try:
            for _ in range(1 + len(self.options.workers)):
                response = await self._http.post(self._worker + path, json=body, timeout=timeout)
                if response.status_code != 307:
                    return response
                self._worker = _worker_of(response)
        except httpx.TransportError as exc:
            if self.options.workers:
                raise WorkerNotAvailable(f"{self._worker}: {type(exc).__name__}") from exc
            raise
        raise WorkerNotAvailable("the workers redirect to each other: the owner is changing")

    @property
    def _patience(self) -> float:
        """How long a request that does not park may take: of several workers, one may hang."""
        return self.options.session_timeout / 4 if self.options.workers else 30


def _worker_of(redirect: httpx.Response) -> str:
    """Return the address of the worker to which a response redirects."""
    location: str = redirect.headers["location"]
    return location.removesuffix(redirect.request.url.path)
