"""How much has to fire before a wait ends."""

from __future__ import annotations

from typing import Final


# Not a dataclass: the compiler makes a C structure of this.
class Condition:
    """The number of signals that a key needs, and the number of keys that need them. Immutable.

    One object serves every wait with the same numbers: any key is 1, all keys are as many as the
    wait has.
    """

    __slots__ = ("min_signals", "needed_keys")

    min_signals: int
    needed_keys: int

    def __init__(self, min_signals: int = 1, needed_keys: int = 1) -> None:
        """Require `min_signals` signals on each of `needed_keys` keys; both are at least 1."""
        self.min_signals = min_signals
        self.needed_keys = needed_keys


ANY: Final = Condition()
"""One signal on any key."""
