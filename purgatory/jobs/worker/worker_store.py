"""The steps of a worker on its store."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from purgatory.jobs.model.bounds import Bounds
from purgatory.jobs.model.job import Job, JobClaim
from purgatory.jobs.model.steps import (
    Claim,
    Claimed,
    Finish,
    GiveBack,
    Miss,
    Prune,
    Renew,
    Result,
    Start,
    Step,
    WaitAgain,
    accepted,
)
from purgatory.jobs.stores.protocol import JobStore
from purgatory.jobs.worker.store_clock import StoreClock
from purgatory.jobs.worker.store_retry import StoreRetry
from purgatory.timer.clock import NS_PER_MS

# Jobs in one step: the worker handles a step's result in one turn of the loop, in some 5 ms.
BATCH = 250


class WorkerStore:
    """A store as one worker uses it: each step is repeated until the store has done it.

    The store's protocol makes every step safe to repeat. No method raises while the store is out of
    reach (`StoreRetry`), except `give_back_once`.
    """

    # Methods that only pass a call on are no coroutines: a frame less for each step of each job.

    def __init__(
        self, store: JobStore, *, worker: str, lease_ms: int, clock: StoreClock, retry: StoreRetry
    ) -> None:
        """Work on `store`, which is open, as `worker`."""
        self._store = store
        self._worker = worker
        self.lease_ms = lease_ms
        self.clock = clock
        self._retry = retry
        # When a claim is to look for leases that have ended as the store's clock went back.
        self._look_ns = clock.local_ns()
        # No more than a store returns at once: a short result means that nothing is left.
        self.batch = min(BATCH, store.limits.max_batch)

    @property
    def hears_others(self) -> bool:
        """True iff the store announces the jobs that other processes defer."""
        return self._store.hears_others

    async def now_ms(self) -> int:
        """Return the store's clock, and synchronize ours with it."""
        asked_ns = self.clock.local_ns()
        now_ms = await self._retry.call("now_ms", self._store.now_ms)
        self.clock.note(now_ms, asked_ns)
        return now_ms

    def next_due_ms(self, handlers: tuple[str, ...]) -> Awaitable[int | None]:
        """Return the earliest due_ms of the jobs of `handlers` that can be claimed now, or None."""
        return self._retry.call("next_due_ms", lambda: self._store.next_due_ms(handlers))

    async def claim(
        self,
        *,
        within_ms: int,
        limit: int,
        handlers: tuple[str, ...],
        bounds: tuple[Bounds, ...] = (),
    ) -> Claimed:
        """Lease up to `limit` jobs that are due within `within_ms`, the earliest first."""
        asked_ns = self.clock.local_ns()
        clock_ms = None
        if asked_ns >= self._look_ns:
            clock_ms = self.clock.now_ms() if self.clock.is_set else 0
            self.put_off_look()
        step = Claim(self._worker, within_ms, limit, self.lease_ms, handlers, bounds, clock_ms)
        [claimed] = await self._run("claim", [step])
        self.clock.note(claimed.now_ms, asked_ns)
        return claimed

    def put_off_look(self) -> None:
        """Let live workers renew their leases, as they do three times per lease, before a look."""
        self._look_ns = self.clock.local_ns() + self.lease_ms * NS_PER_MS // 2

    async def renew(self, claims: Sequence[JobClaim]) -> list[JobClaim]:
        """Extend leases; return the claims that are lost or finished.

        A claim that the store was too busy to look at is neither: ask again.
        """
        renewed = await self._run("renew", [Renew(claim, self.lease_ms) for claim in claims])
        return [claim for claim, result in zip(claims, renewed, strict=True) if result is False]

    async def renew_one(self, claim: JobClaim) -> bool:
        """Extend a lease, as soon as the store can; return False if the claim is lost."""

        async def ask() -> bool:
            [result] = await self._store.run([Renew(claim, self.lease_ms)])
            return accepted(result)

        return await self._retry.call("renew", ask)

    async def start(
        self, claim: JobClaim, attempt: int, bounds: Bounds | None = None
    ) -> tuple[Job | None, int]:
        """Start a job; None if the claim is lost; a job that is WAITING still if not due yet.

        Also return the local time in ns before which its lease has not begun.
        """
        asked_ns = 0

        def ask() -> Awaitable[list[Job | None]]:
            nonlocal asked_ns
            asked_ns = self.clock.local_ns()
            return self._store.run([Start(claim, self.lease_ms, attempt, bounds)])

        [job] = await self._retry.call("start", ask)
        return job, asked_ns

    def finish(self, results: Sequence[Finish]) -> Awaitable[list[bool]]:
        """Record how jobs ended; return for each whether it is recorded."""
        return self._run("finish", results)

    def miss(self, claims: Sequence[JobClaim]) -> Awaitable[list[bool]]:
        """Record that jobs were missed; return for each whether it is recorded."""
        return self._run("miss", [Miss(claim) for claim in claims])

    def give_back(self, returns: Sequence[GiveBack]) -> Awaitable[list[bool]]:
        """Release jobs; return for each whether this call did it."""
        return self._run("give_back", returns)

    async def wait_again(self, step: WaitAgain) -> Job | None:
        """Let a job wait again, and return it; None if the claim is lost."""
        [job] = await self._run("wait_again", [step])
        return job

    async def give_back_once(self, returns: Sequence[GiveBack]) -> list[bool]:
        """Release jobs without repeating the step; raises what the store raises."""
        return await self._store.run(returns)

    async def prune(self, *, finished_before_ms: int, keep: int) -> bool:
        """Delete a batch of old jobs; return True iff more may be left."""
        [pruned] = await self._run("prune", [Prune(finished_before_ms, keep, self.batch)])
        return pruned == self.batch

    def _run(self, name: str, steps: Sequence[Step[Result]]) -> Awaitable[list[Result]]:
        return self._retry.call(name, lambda: self._store.run(steps))
