"""Key rules: what the journal writes for a watch key."""

from __future__ import annotations

import hashlib
from functools import lru_cache

# As long as a random key should be, and the longest that BLAKE2b takes.
MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 64

_DIGEST_BYTES = 16
_CACHED = 65_536


class HashedKeys:
    """Writes a keyed hash of a watch key: BLAKE2b, 32 hexadecimal digits.

    The same key has the same hash under the same secret, so that hot keys still show. Without the
    secret, guessed keys cannot be tried out.
    """

    def __init__(self, secret: bytes) -> None:
        """Hash with `secret`, 16 to 64 bytes; raises ValueError for another length."""
        if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
            raise ValueError(
                f"the secret has {len(secret)} bytes: give {MIN_SECRET_BYTES} to "
                f"{MAX_SECRET_BYTES}, such as secrets.token_bytes(32), and keep it"
            )

        @lru_cache(_CACHED)
        def digest(key: str) -> str:
            return hashlib.blake2b(key.encode(), key=secret, digest_size=_DIGEST_BYTES).hexdigest()

        self._digest = digest

    def __call__(self, key: str) -> str:
        """Return the written form of `key`."""
        return self._digest(key)


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
        """Return the written form of `key`."""
        return self.separator.join(key.split(self.separator, self.segments)[: self.segments])
