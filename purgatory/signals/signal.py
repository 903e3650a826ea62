"""One firing of a key."""

from __future__ import annotations

from typing import Any


# Not a dataclass: one is made for every fire, and the compiler makes a C structure of this.
class Signal:
    """One firing of a key. Do not change it: everyone who waited shares it."""

    __slots__ = (
        "_newer",
        "_newer_of_key",
        "_older",
        "_older_of_key",
        "at_ms",
        "encoded",
        "key",
        "offset",
        "seq",
        "value",
    )

    key: str
    seq: int
    """1, 2, 3 ... for each key; a later signal of the key has a higher one."""
    offset: int
    """The position among the signals of all keys; cursors are made of it."""
    at_ms: int
    """UTC milliseconds since 1970: for people, not for ordering."""
    value: Any
    """What was fired: a JSON value."""
    encoded: bytes
    """`value` as JSON, encoded once however many wait."""

    # Its neighbours among the signals that are kept, of all keys and of its own.
    _older: Signal | None
    _newer: Signal | None
    _older_of_key: Signal | None
    _newer_of_key: Signal | None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle this signal alone, without those it is chained to."""
        fields = (self.key, self.seq, self.offset, self.at_ms, self.value, self.encoded)
        return _alone, fields

    def __repr__(self) -> str:
        """Say which signal of which key it is."""
        return f"<Signal {self.seq} of {self.key!r}: {self.value!r}>"


def _alone(key: str, seq: int, offset: int, at_ms: int, value: Any, encoded: bytes) -> Signal:
    signal = Signal.__new__(Signal)
    signal.key = key
    signal.seq = seq
    signal.offset = offset
    signal.at_ms = at_ms
    signal.value = value
    signal.encoded = encoded
    signal._older = signal._newer = signal._older_of_key = signal._newer_of_key = None
    return signal
