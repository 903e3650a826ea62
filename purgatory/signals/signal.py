"""One firing of a key."""

from __future__ import annotations

from typing import Any

from purgatory.json_value import stored_value


# Not a dataclass: one is created for every fire, and Cython makes a C structure of this.
class Signal:
    """One firing of a key. All waiters share it: do not change it."""

    __slots__ = (
        "_newer",
        "_newer_of_key",
        "_older",
        "_older_of_key",
        "_owner",
        "at_ms",
        "encoded",
        "key",
        "offset",
        "seq",
    )

    key: str
    seq: int
    """1, 2, 3 ... for each key; a later signal of the key has a higher one."""
    offset: int
    """The position among the signals of all keys, which cursors contain."""
    at_ms: int
    """UTC milliseconds since 1970: for display, not for ordering."""
    encoded: bytes
    """The value as JSON, encoded once for all waiters."""

    # Who fired it. Not the object that counts the owner's signals: the collector would visit that
    # for each signal.
    _owner: str | None
    # Its neighbours among the retained signals of its owner, and of its key.
    _older: Signal | None
    _newer: Signal | None
    _older_of_key: Signal | None
    _newer_of_key: Signal | None

    @property
    def value(self) -> Any:
        """The JSON value that was fired, decoded by each access."""
        return stored_value(self.encoded.decode())

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle this signal without its neighbours."""
        fields = (self.key, self.seq, self.offset, self.at_ms, self.encoded)
        return _unlinked, fields

    def __repr__(self) -> str:
        """Return key, number and value."""
        return f"<Signal {self.seq} of {self.key!r}: {self.value!r}>"


def _unlinked(key: str, seq: int, offset: int, at_ms: int, encoded: bytes) -> Signal:
    signal = Signal.__new__(Signal)
    signal.key = key
    signal.seq = seq
    signal.offset = offset
    signal.at_ms = at_ms
    signal.encoded = encoded
    signal._older = signal._newer = signal._older_of_key = signal._newer_of_key = None
    signal._owner = None
    return signal
