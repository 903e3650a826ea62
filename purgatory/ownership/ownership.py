"""Ownership of names: acquiring, renewing, committing, releasing."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Self

from purgatory.background import BackgroundLoop, OutageLog
from purgatory.errors import LeaseLostError, OwnershipUnavailableError, PurgatoryClosedError
from purgatory.group_commit import RoundTripTimeout
from purgatory.operations.watch_key import check_key
from purgatory.ownership.lease import (
    MAX_ADDRESS_LENGTH,
    MAX_STATE_BYTES,
    Lease,
    LeaseRecord,
    LeaseResult,
    LeaseStep,
    LeaseStore,
    Owner,
)
from purgatory.retry_policy import RetryPolicy
from purgatory.timer import Clock, SystemClock
from purgatory.timer.clock import NS_PER_MS, Seconds, seconds_of

_logger = logging.getLogger("purgatory.ownership")


MIN_LEASE_MS = 100
MAX_LEASE_MS = 3_600_000
_ATTEMPTS = 3
_RETRIES = RetryPolicy(first_ms=20, max_ms=500)


class Ownership:
    """Owns names for this process, one owner at a time among all processes of a store.

    A name belongs to the process until it releases it, or fails to renew the lease in time because
    it is dead, suspended or cut off. All leases are renewed by one task. Use it on one event loop,
    with `async with`, which releases everything at the end.
    """

    def __init__(
        self,
        store: LeaseStore,
        address: str,
        *,
        lease_ms: int = 10_000,
        timeout: Seconds = 2.0,
        on_lost: Callable[[Lease], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Own names in `store` as the process at `address`, which other processes are told.

        Each process needs an address of its own. A dead or suspended owner is replaced `lease_ms`
        after its last renewal; it is renewed every third of that. `on_lost(lease)` is called when a
        lease is found lost, never for one that was released, in the context (`contextvars`) of
        `open`. `acquire` and `read` take at most about `timeout` seconds. Raises ValueError for
        values out of range.
        """
        if not address or not address.isprintable() or len(address) > MAX_ADDRESS_LENGTH:
            raise ValueError(
                f"address is {address[:100]!r}: give the address of this process, such as "
                "http://10.0.0.7:8000"
            )
        if type(lease_ms) is not int or not MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
            raise ValueError(
                f"lease_ms is {lease_ms!r}: give a whole number from {MIN_LEASE_MS} to "
                f"{MAX_LEASE_MS}"
            )
        timeout = seconds_of(timeout)
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout is {timeout!r}: give seconds, above zero")
        self.address = address
        self._instance = secrets.token_hex(8)
        self._store = store
        self._lease_ms = lease_ms
        self._timeout_seconds = timeout
        # Several attempts within one lease, also when a server does not answer at all.
        self._attempt = RoundTripTimeout(min(timeout, lease_ms / 4_000))
        self.on_lost = on_lost
        """Called with each lease that is found lost."""
        # For `on_lost`: any caller may be the first to find that a lease is lost.
        self._context: Context
        self._clock: Clock = SystemClock() if clock is None else clock
        self._leases: dict[str, Lease] = {}
        self._acquiring: dict[str, asyncio.Task[Lease | Owner]] = {}
        # Started by `open`, perhaps on another event loop than before.
        self._renewer: BackgroundLoop
        self._outage = OutageLog(
            _logger,
            "cannot renew leases, trying again until they end: %s",
            "renews leases again",
            actions=("ownership.renew", "ownership.renewed"),
        )
        self._is_open = False

    async def open(self) -> None:
        """Connect, or go on trying, and begin to renew leases. Raises OwnershipNotReadyError."""
        await self._store.open()
        self._context = copy_context()
        self._is_open = True
        self._renewer = BackgroundLoop(
            self._renew,
            name="ownership.renew",
            poll_s=self._lease_ms / 3_000,
            retry=RetryPolicy(first_ms=20, max_ms=max(20, self._lease_ms // 10)),
            outages=(OwnershipUnavailableError,),
            on_outage=self._outage.begin,
            logger=_logger,
        )
        self._renewer.start()

    async def close(self) -> None:
        """Release every lease, so that others need not wait for its end, and disconnect."""
        self._is_open = False
        self._attempt.hurry()
        # They end with the attempt that is under way.
        await asyncio.gather(*self._acquiring.values(), return_exceptions=True)
        try:
            await self._renewer.stop()
            await self.release(*self._leases.values())
        finally:
            await self._store.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def lease(self, name: str) -> Lease | None:
        """Return this process's valid lease of `name`, if it has one. Asks no server."""
        lease = self._leases.get(name)
        if lease is not None and not lease.is_valid:
            self._lose(lease)
            return None
        return lease

    async def acquire(self, name: str) -> Lease | Owner:
        """Return the lease of `name`, or who owns it.

        Raises OwnershipUnavailableError if the store is out of reach for `timeout` seconds, and
        InvalidKeyError for a name that is not 1 to 256 characters without controls.
        """
        check_key(name)
        lease = self.lease(name)
        if lease is not None:
            return lease
        task = self._acquiring.get(name)
        if task is None:
            self._require_open()
            # In an empty context: others may wait for the same task.
            task = asyncio.create_task(self._acquire(name), context=Context())
            self._acquiring[name] = task
            task.add_done_callback(partial(self._on_acquired, name))
        return await asyncio.shield(task)

    async def read(self, name: str) -> LeaseRecord:
        """Return what the store has under `name`: owner and committed state. Acquires nothing."""
        check_key(name)
        self._require_open()
        record, _ = await self._retried(LeaseStep("read", name))
        return record

    async def commit(self, lease: Lease, state: bytes | None) -> None:
        """Replace the state of the name; None removes it. Done once this returns.

        The store compares the fencing epoch: an owner that was replaced changes nothing. Attempts
        are repeated for as long as the lease is valid. Raises LeaseLostError: the state may or may
        not be replaced, and whoever owns the name next finds out; ValueError for more than 1 MiB.
        """
        if state is not None and len(state) > MAX_STATE_BYTES:
            raise ValueError(
                f"the state of {lease.name!r} has {len(state)} bytes: commit at most "
                f"{MAX_STATE_BYTES}, and keep the rest elsewhere under the epoch"
            )
        async with lease._lock:
            lease._version += 1
            step = lease._step("commit", version=lease._version, state=state)
            attempt = 0
            while lease.is_valid:
                attempt += 1
                sent_ns = self._clock.now_ns()
                try:
                    record = await self._run_one(step)
                except OwnershipUnavailableError:
                    await asyncio.sleep(min(_RETRIES.delay_s(attempt), lease._seconds_left()))
                    continue
                if not record.is_done:
                    break
                lease._extend(sent_ns)
                if lease.is_valid:
                    lease.state = state
                    return
        self._lose(lease)
        raise LeaseLostError(
            f"the lease of {lease.name!r} with epoch {lease.epoch} has ended: acquire it again"
        )

    async def release(self, *leases: Lease) -> None:
        """End leases at once; if the store is out of reach, others wait until they end there."""
        released = [lease for lease in leases if lease._end()]
        for lease in released:
            if self._leases.get(lease.name) is lease:
                del self._leases[lease.name]
        if not released:
            return
        for result in await self._run([lease._step("release") for lease in released]):
            if isinstance(result, OwnershipUnavailableError):
                _logger.warning(
                    "could not release leases, which end in %d ms: %s",
                    self._lease_ms,
                    result,
                    extra={"action": "ownership.release"},
                )
                return

    async def _acquire(self, name: str) -> Lease | Owner:
        token = secrets.token_hex(8)
        step = LeaseStep(
            *("acquire", name, token),
            lease_ms=self._lease_ms,
            instance=self._instance,
            address=self.address,
        )
        for _ in range(_ATTEMPTS):
            record, sent_ns = await self._retried(step)
            if not record.is_done:
                return Owner(record.address or "", record.epoch, record.remaining_ms)
            lease = Lease(
                name,
                token=token,
                epoch=record.epoch,
                version=record.version,
                lease_ms=self._lease_ms,
                clock=self._clock,
            )
            lease.state = record.state
            lease._extend(sent_ns)
            # Otherwise this process was suspended meanwhile; the repeat renews the lease.
            if lease.is_valid:
                self._leases[name] = lease
                _logger.info(
                    "owns %r with epoch %d",
                    name,
                    lease.epoch,
                    extra={"action": "ownership.acquired"},
                )
                return lease
        raise OwnershipUnavailableError(
            f"the lease of {name!r} had ended before this process knew of it, {_ATTEMPTS} times: "
            f"lease_ms is {self._lease_ms}, and its event loop is blocked for longer"
        )

    async def _renew(self, is_poll: bool) -> bool:
        """Renew every lease in one round trip; raise OwnershipUnavailableError if some are not."""
        for lease in list(self._leases.values()):
            if not lease.is_valid:
                self._lose(lease)
        leases = list(self._leases.values())
        if not leases:
            return False
        sent_ns = self._clock.now_ns()
        steps = [lease._step("renew") for lease in leases]
        error = None
        for lease, result in zip(leases, await self._run(steps), strict=True):
            if isinstance(result, OwnershipUnavailableError):
                error = result
            elif result.is_done:
                lease._extend(sent_ns)
            else:
                self._lose(lease)
        if error is not None:
            raise error
        self._outage.end()
        return False

    def _on_acquired(self, name: str, task: asyncio.Task[Lease | Owner]) -> None:
        del self._acquiring[name]
        if not task.cancelled():
            # Nobody may be waiting for it any more.
            task.exception()

    async def _retried(self, step: LeaseStep) -> tuple[LeaseRecord, int]:
        """Return the record, and when the step was sent."""
        deadline_ns = self._clock.now_ns() + round(self._timeout_seconds * 1_000 * NS_PER_MS)
        attempt = 0
        while True:
            attempt += 1
            sent_ns = self._clock.now_ns()
            try:
                record = await self._run_one(step)
            except OwnershipUnavailableError:
                if self._clock.now_ns() >= deadline_ns or not self._is_open:
                    raise
                await asyncio.sleep(_RETRIES.delay_s(attempt))
            else:
                return record, sent_ns

    async def _run_one(self, step: LeaseStep) -> LeaseRecord:
        (result,) = await self._run([step])
        if isinstance(result, OwnershipUnavailableError):
            raise result
        return result

    async def _run(self, steps: Sequence[LeaseStep]) -> list[LeaseResult]:
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        try:
            async with self._attempt.limit():
                results = await self._store.run(steps)
                # redis-py waits with `asyncio.wait_for`, which before Python 3.12 swallows a
                # cancellation that comes together with the reply.
                if task.cancelling() > cancellations:
                    raise asyncio.CancelledError
                return results
        except TimeoutError:
            error = OwnershipUnavailableError(
                f"the lease store did not reply within {self._attempt.seconds:g} s: try again"
            )
            return [error] * len(steps)

    def _lose(self, lease: Lease) -> None:
        """End a lease that is not valid any more."""
        if not lease._end():
            return
        if self._leases.get(lease.name) is lease:
            del self._leases[lease.name]
        _logger.warning(
            "lost the lease of %r with epoch %d",
            lease.name,
            lease.epoch,
            extra={"action": "ownership.lost"},
        )
        if self.on_lost is None:
            return
        try:
            self._context.copy().run(self.on_lost, lease)
        except Exception:
            _logger.exception("on_lost failed", extra={"action": "ownership.lost"})

    def _require_open(self) -> None:
        if not self._is_open:
            raise PurgatoryClosedError("the ownership is not open: use it with `async with`")
