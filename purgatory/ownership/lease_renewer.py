"""The renewal of all leases of a process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from purgatory.errors import OwnershipUnavailableError
from purgatory.ownership.lease import Lease
from purgatory.ownership.lease_store import LeaseResult, LeaseStep, Renew
from purgatory.retry_policy import RetryPolicy
from purgatory.timer import Clock

_logger = logging.getLogger("purgatory.ownership")


class LeaseRenewer:
    """Renews every lease in one round trip, each third of a lease; calls `lose` for what ended."""

    def __init__(
        self,
        leases: Mapping[str, Lease],
        run: Callable[[Sequence[LeaseStep]], Awaitable[list[LeaseResult]]],
        *,
        lose: Callable[[Lease], None],
        lease_ms: int,
        clock: Clock,
    ) -> None:
        self._leases = leases
        self._run = run
        self._lose = lose
        self._lease_ms = lease_ms
        self._clock = clock
        # Processes that lost the store together do not return in step.
        self._interval = RetryPolicy(first_ms=lease_ms // 3, max_ms=lease_ms // 3, jitter=0.2)
        self._retries = RetryPolicy(first_ms=20, max_ms=max(20, lease_ms // 10))
        self._has_leases = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, on the running event loop, which may be another than before."""
        self._has_leases = asyncio.Event()
        self._task = asyncio.create_task(self._renew_until_cancelled())

    async def stop(self) -> None:
        """Stop the task."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wake(self) -> None:
        """Begin to renew: there is a lease."""
        self._has_leases.set()

    async def _renew_until_cancelled(self) -> None:
        failures = 0
        while True:
            if not self._leases:
                self._has_leases.clear()
            await self._has_leases.wait()
            policy = self._retries if failures else self._interval
            await asyncio.sleep(min(policy.delay_s(max(1, failures)), self._seconds_left()))
            try:
                error = await self._renew()
            except Exception:
                failures += 1
                _logger.exception("cannot renew", extra={"action": "ownership.renew"})
                continue
            failures = 0 if error is None else failures + 1
            if failures == 1:
                _logger.error(
                    "cannot renew leases, trying again until they end: %s",
                    error,
                    extra={"action": "ownership.renew"},
                )

    async def _renew(self) -> OwnershipUnavailableError | None:
        """Renew every lease; return an error if some could not be renewed."""
        for lease in list(self._leases.values()):
            if not lease.is_valid:
                self._lose(lease)
        leases = list(self._leases.values())
        if not leases:
            return None
        sent_ns = self._clock.now_ns()
        steps = [
            Renew(name=lease.name, token=lease._token, epoch=lease.epoch, lease_ms=self._lease_ms)
            for lease in leases
        ]
        error = None
        for lease, result in zip(leases, await self._run(steps), strict=True):
            if isinstance(result, OwnershipUnavailableError):
                error = result
            elif result.is_done:
                lease._extend(sent_ns)
            else:
                self._lose(lease)
        return error

    def _seconds_left(self) -> float:
        """Return the time until the first lease ends."""
        return min((lease._seconds_left() for lease in self._leases.values()), default=0.0)
