"""The signals of the service, from its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from purgatory.log_text import REDIS_SCHEMES, either, redacted

if TYPE_CHECKING:
    from purgatory.signals.redis import RedisSignals


def make_signals(url: str, shards: int, ack: Literal["memory", "aof"]) -> RedisSignals:
    """Return the signals at `url`, which are not opened yet; raise ValueError for an invalid one.

    `redis+cluster://` names one node of a cluster, and `redis+sentinel://` Sentinels.
    """
    scheme = url.partition(":")[0]
    if scheme not in REDIS_SCHEMES:
        raise ValueError(
            f"signals are not shared through {redacted(url)!r}: give a URL that begins with "
            f"{either(REDIS_SCHEMES)}"
        )
    # Imported here: the service needs redis-py only for such a URL.
    from purgatory.signals.redis import RedisSignals

    return RedisSignals(url, shards=shards, ack=ack)
