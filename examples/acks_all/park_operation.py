"""`Purgatory.park_operation` with the errors of the broker."""

from __future__ import annotations

from collections.abc import Iterable

from examples.acks_all.errors import BrokerBusy, BrokerClosing
from purgatory import DelayedOperation, LimitReachedError, Purgatory, PurgatoryClosedError


def park_operation(purgatory: Purgatory, operation: DelayedOperation, keys: Iterable[str]) -> bool:
    """Park an operation; raise BrokerBusy or BrokerClosing."""
    try:
        return purgatory.park_operation(operation, keys)
    except LimitReachedError as exc:
        raise BrokerBusy(exc.detail, {"limit": exc.limit, "maximum": exc.maximum}) from exc
    except PurgatoryClosedError as exc:
        raise BrokerClosing("the broker is shutting down: try another broker") from exc
