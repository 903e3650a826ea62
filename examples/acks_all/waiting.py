"""Parking an operation, refused in the broker's own words."""

from __future__ import annotations

from collections.abc import Iterable

from examples.acks_all.errors import BrokerBusy, BrokerClosing
from purgatory import DelayedOperation, LimitReachedError, Purgatory, PurgatoryClosedError


def watch(purgatory: Purgatory, operation: DelayedOperation, keys: Iterable[str]) -> bool:
    """Call `Purgatory.watch`; raise BrokerBusy or BrokerClosing where it refuses."""
    try:
        return purgatory.watch(operation, keys)
    except LimitReachedError as exc:
        raise BrokerBusy(exc.detail, {"limit": exc.limit, "maximum": exc.maximum}) from exc
    except PurgatoryClosedError as exc:
        raise BrokerClosing("the broker is shutting down: ask again elsewhere") from exc
