"""Keys without what is personal in them."""

from __future__ import annotations


class KeyPrefixes:
    """Writes the first segments of a watch key: "order" for "order:42:paid"."""

    def __init__(self, segments: int = 1, *, separator: str = ":") -> None:
        """Keep so many `segments`; raises ValueError for none, or without a separator."""
        if segments < 1:
            raise ValueError(f"segments is {segments}: at least one is kept")
        if not separator:
            raise ValueError("the separator is empty: name what stands between segments")
        self.segments = segments
        self.separator = separator

    def __call__(self, key: str) -> str:
        """Return what is written in place of `key`."""
        return self.separator.join(key.split(self.separator, self.segments)[: self.segments])
