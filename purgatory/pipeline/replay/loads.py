"""Loads: batches of operations that arrive, from the journal with changes, or synthetic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from purgatory.timer.clock import NS_PER_MS

Integers = NDArray[np.int64]

NEVER_NS: Final = 2**62
"""The end of an operation that only its deadline ends."""


class Fate(IntEnum):
    """The end of an operation, as the load knows it."""

    NONE = 0
    """Nothing ended it, up to its deadline in the replay."""
    UNKNOWN = 1
    """Unknown from some time before that deadline on."""
    FORCED = 2
    """It was completed by force."""
    FIRED = 3
    """One of its keys was fired."""
    CANCELLED = 4
    """It was cancelled, or drained."""


@dataclass(frozen=True, slots=True)
class LoadBatch:
    """Operations in order of arrival, one for each index of the arrays."""

    # Invariant: all arrays and lists have one length; arrival_ns never falls, within a batch and
    # from one to the next; end_ns is NEVER_NS where the fate is NONE or UNKNOWN.
    arrival_ns: Integers
    delay_ms: Integers
    end_ns: Integers
    fate: Integers
    keys: list[tuple[str, ...]]
    fired_keys: list[str | None]
    """The key through which each was fired; None unless it was FIRED."""

    @classmethod
    def concatenated(cls, batches: Sequence[LoadBatch]) -> LoadBatch:
        """Return one batch for several consecutive ones."""
        if len(batches) == 1:
            return batches[0]
        return cls(
            arrival_ns=np.concatenate([batch.arrival_ns for batch in batches]),
            delay_ms=np.concatenate([batch.delay_ms for batch in batches]),
            end_ns=np.concatenate([batch.end_ns for batch in batches]),
            fate=np.concatenate([batch.fate for batch in batches]),
            keys=list(chain.from_iterable(batch.keys for batch in batches)),
            fired_keys=list(chain.from_iterable(batch.fired_keys for batch in batches)),
        )

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self.arrival_ns)


MOST_FACTOR = 1_000_000


class Growth(StrEnum):
    """The keys of additional traffic."""

    WIDER = "wider"
    """More customers: each copy of an operation has keys of its own."""
    BUSIER = "busier"
    """Busier customers: all copies have the same keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Changes of a load: more traffic, other timeouts, another wheel.

    Raises ValueError for parameters out of range.
    """

    traffic: float = 1.0
    """The factor of operations. A fraction keeps or repeats whole keys."""
    timeout: float = 1.0
    """The factor of each timeout, which is rounded down to a millisecond."""
    growth: Growth = Growth.WIDER
    tick_ms: int = 1
    wheel_size: int = 256

    def __post_init__(self) -> None:
        for name, value in (("traffic", self.traffic), ("timeout", self.timeout)):
            if not 0 < value <= MOST_FACTOR:
                raise ValueError(f"{name} is {value}: give a factor above 0, up to {MOST_FACTOR:,}")
        if self.tick_ms < 1:
            raise ValueError(f"tick_ms is {self.tick_ms}: give 1 or more")
        if self.wheel_size < 2:
            raise ValueError(f"wheel_size is {self.wheel_size}: give 2 or more")


# The quantile of the normal distribution below which three quarters lie.
_QUARTILE = 0.67449
_BATCH = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticLoad:
    """Poisson arrivals; each waits on a few keys, for a latency of a log-normal distribution.

    The latencies are given by two of their percentiles. An operation with a latency below the
    timeout is completed by force at that time; the others expire.

    `shards` are independent of each other: each has its part of the operations and of the rate,
    which together are a Poisson process of the whole rate, and keys of its own. The same parameters
    give the same load, shard by shard, on any machine.

    Source: Kafka's `TestPurgatoryPerformance`, whose published setting is the default: one set of 3
    keys that all requests of a broker share; 20 and 60 ms, or 200 and 400 ms.
    Raises ValueError for parameters out of range.
    """

    operations: int = 1_000_000
    rate_per_s: float = 100_000.0
    timeout_ms: int = 200
    median_ms: float = 20.0
    quartile_ms: float = 60.0
    """The 75th percentile of the latencies."""
    key_sets: int = 1
    """Of each shard; an operation watches all keys of one set."""
    keys_each: int = 3
    shards: int = 8
    seed: int = 22

    def __post_init__(self) -> None:
        for name in ("operations", "timeout_ms", "key_sets", "keys_each", "shards"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
        if not 0 < self.rate_per_s < math.inf:
            raise ValueError(f"rate_per_s is {self.rate_per_s}: give a number above 0")
        if not 0 < self.median_ms <= self.quartile_ms < math.inf:
            raise ValueError(
                f"median_ms is {self.median_ms} and quartile_ms {self.quartile_ms}: "
                "give numbers above 0, the median no greater than the quartile"
            )

    def changed(self, what_if: WhatIf) -> SyntheticLoad:
        """Return the load with the traffic of `what_if`, in the same time."""
        return replace(
            self,
            operations=max(1, round(self.operations * what_if.traffic)),
            rate_per_s=self.rate_per_s * what_if.traffic,
        )

    def batches(self, shard: int, *, timeout: float = 1.0) -> Iterator[LoadBatch]:
        """Yield the operations of a shard, numbered from 0, with `timeout` times the timeout."""
        random = np.random.default_rng([self.seed, shard])
        delay_ms = max(1, math.floor(self.timeout_ms * timeout))
        key_sets = self._key_sets(shard)
        at_ns = 0
        left = self.operations // self.shards + (shard < self.operations % self.shards)
        while left:
            size = min(left, _BATCH)
            left -= size
            gaps_ns = random.exponential(1e9 * self.shards / self.rate_per_s, size)
            arrival_ns = at_ns + np.cumsum(gaps_ns).astype(np.int64)
            at_ns = int(arrival_ns[-1])
            mu = math.log(self.median_ms)
            sigma = (math.log(self.quartile_ms) - mu) / _QUARTILE
            latency_ms = random.lognormal(mu, sigma, size)
            has_end = latency_ms < max(self.timeout_ms, delay_ms)
            latency_ns = np.where(has_end, latency_ms * NS_PER_MS, 0).astype(np.int64)
            chosen = random.integers(0, self.key_sets, size).tolist()
            yield LoadBatch(
                arrival_ns=arrival_ns,
                delay_ms=np.full(size, delay_ms),
                end_ns=np.where(has_end, arrival_ns + latency_ns, NEVER_NS),
                fate=np.where(has_end, int(Fate.FORCED), int(Fate.NONE)),
                keys=[key_sets[number] for number in chosen],
                fired_keys=[None] * size,
            )

    def _key_sets(self, shard: int) -> list[tuple[str, ...]]:
        return [
            tuple(f"{shard}:{number}:{key}" for key in range(self.keys_each))
            for number in range(self.key_sets)
        ]


# Kafka's published settings: about 8 % and 50 % expire.
KAFKA_LOW = SyntheticLoad()
KAFKA_HIGH = SyntheticLoad(median_ms=200.0, quartile_ms=400.0)
