"""The condition of a wait: how many signals on how many keys."""

from __future__ import annotations

from typing import Final


# Not a dataclass: the compiler makes a C structure of this.
class Condition:
    """The number of signals that a key needs, and the number of keys that need them. Immutable.

    Waits with the same numbers can share one object. `needed_keys` is 1 for any key, and the number
    of keys of the wait for all of them.
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
