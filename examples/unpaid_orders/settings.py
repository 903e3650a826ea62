"""The settings of the shop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopSettings:
    """A shop's settings."""

    database: Path
    """The SQLite file; created if missing."""
    payment_minutes: float = 15.0
    """Minutes that a buyer has to pay."""
    connections: int = 5
    """The number of database connections; a request waits for one if all are in use."""
    connection_timeout: float = 5.0
    """The maximum wait for a connection, and for another one that writes, in seconds."""
