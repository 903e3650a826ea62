"""What can be set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopSettings:
    """A shop's settings."""

    database: Path
    """The SQLite file; made where there is none."""
    payment_minutes: float = 15.0
    """How long a buyer has to pay."""
    connections: int = 5
    """Connections to the database, at most: a request waits for one while all are in use."""
    connection_timeout: float = 5.0
    """Seconds for which it does, before it fails."""
