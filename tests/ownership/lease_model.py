"""A lease store in memory, to be compared with the real one, and one that is out of reach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from purgatory.ownership import LeaseStore, OwnershipUnavailableError
from purgatory.ownership.lease import (
    LeaseRecord,
    LeaseResult,
    LeaseStep,
)


@dataclass(slots=True)
class _Record:
    epoch: int = 0
    version: int = 0
    state: bytes | None = None
    token: str | None = None
    instance: str | None = None
    address: str | None = None
    until_us: int = 0
    lease_us: int = 0


class LeaseModel:
    """A `LeaseStore` in memory, on the clock `now_us`."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._records: dict[str, _Record] = {}

    async def open(self) -> None:
        """Connect to nothing."""

    async def close(self) -> None:
        """Close nothing."""

    async def run(self, steps: Sequence[LeaseStep]) -> list[LeaseResult]:
        """Run steps."""
        return [self.apply(step) for step in steps]

    def flush(self) -> None:
        """Lose every record, as by FLUSHALL."""
        self._records.clear()

    def copy(self) -> dict[str, _Record]:
        """Return what a replica has that is up to date."""
        return {name: replace(record) for name, record in self._records.items()}

    def fail_over(self, replica: dict[str, _Record]) -> None:
        """Go on with the records of a replica."""
        self._records = {name: replace(record) for name, record in replica.items()}

    def apply(self, step: LeaseStep) -> LeaseRecord:
        """Run one step."""
        record = self._records.get(step.name, _Record())
        now_us = self._now_us()
        until_us = min(record.until_us, now_us + record.lease_us)
        match step.action:
            case "read":
                return _reply(record, until_us, now_us, is_done=True, with_state=True)
            case "acquire":
                is_mine = record.token == step.token or record.instance == step.instance
                if record.token is not None and not is_mine and until_us > now_us:
                    record.until_us = until_us
                    return _reply(record, until_us, now_us, is_done=False)
                if record.token != step.token:
                    record.epoch = max(record.epoch + 1, now_us)
                record.token, record.instance = step.token, step.instance
                record.address = step.address
                self._records[step.name] = record
                return self._extended(record, step.lease_ms, now_us, with_state=True)
        if (record.token, record.epoch) != (step.token, step.epoch):
            return _reply(record, until_us, now_us, is_done=False)
        match step.action:
            case "release":
                record.token = record.instance = record.address = None
                record.until_us = record.lease_us = 0
                return _reply(record, 0, now_us, is_done=True)
            case "commit" if step.version > record.version:
                record.version, record.state = step.version, step.state
        return self._extended(record, step.lease_ms, now_us)

    def _extended(
        self, record: _Record, lease_ms: int, now_us: int, *, with_state: bool = False
    ) -> LeaseRecord:
        record.lease_us = lease_ms * 1_000
        record.until_us = now_us + record.lease_us
        return _reply(record, record.until_us, now_us, is_done=True, with_state=with_state)


def _reply(
    record: _Record, until_us: int, now_us: int, *, is_done: bool, with_state: bool = False
) -> LeaseRecord:
    is_held = until_us > now_us
    return LeaseRecord(
        is_done=is_done,
        epoch=record.epoch,
        version=record.version,
        address=record.address if is_held else None,
        remaining_ms=-(-(until_us - now_us) // 1_000) if is_held else 0,
        state=record.state if with_state else None,
    )


class LossyStore:
    """Passes steps on to another store, unless told otherwise."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self.is_cut = False
        self.loses_replies = False
        self.delay = 0.0
        self.round_trips = 0

    async def open(self) -> None:
        """Connect."""
        await self._store.open()

    async def close(self) -> None:
        """Disconnect."""
        await self._store.close()

    async def run(self, steps: Sequence[LeaseStep]) -> list[LeaseResult]:
        """Run steps, or lose them or their replies."""
        self.round_trips += 1
        errors: list[LeaseResult] = [OwnershipUnavailableError("cut")] * len(steps)
        if self.is_cut:
            return errors
        results = await self._store.run(steps)
        await asyncio.sleep(self.delay)
        return errors if self.loses_replies else results
