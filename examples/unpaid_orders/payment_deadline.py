"""The operation that waits for an order to be paid."""

from __future__ import annotations

from collections.abc import Callable

from examples.unpaid_orders.order import watch_key
from purgatory import DelayedOperation, Purgatory


class PaymentDeadline(DelayedOperation):
    """Completes when its order changes, because it is then settled; expires if it is overdue.

    If the process stops earlier, nothing happens: the order stays open in the table, and the next
    process waits for the remaining time.
    """

    __slots__ = ("_on_overdue", "_order_id", "_position", "_purgatory_of_shop")

    def __init__(
        self,
        delay_ms: int,
        order_id: int,
        purgatory: Purgatory,
        position: int,
        on_overdue: Callable[[int], None],
    ) -> None:
        """Wait for a signal after `position`; without one, call `on_overdue(order_id)`."""
        super().__init__(delay_ms)
        self._order_id = order_id
        self._purgatory_of_shop = purgatory
        self._position = position
        self._on_overdue = on_overdue

    def try_complete(self) -> bool:
        """Complete if the order has changed."""
        last = self._purgatory_of_shop.signals.last(watch_key(self._order_id))
        return last > self._position and self.force_complete()

    def on_complete(self) -> None:
        """Do nothing: the order is settled, or `on_expiration` handles it."""

    def on_expiration(self) -> None:
        """Report the overdue order."""
        self._on_overdue(self._order_id)
