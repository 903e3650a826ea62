"""Keys that nobody can read, and everybody can count."""

from __future__ import annotations

import hashlib
from functools import lru_cache

# As long as a random key should be, and the longest that BLAKE2b takes.
MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 64

_DIGEST_BYTES = 16
_REMEMBERED = 65_536


class HashedKeys:
    """Writes a keyed hash in place of a watch key: BLAKE2b, 32 hexadecimal digits.

    The same key gives the same hash under the same secret, so that hot keys still show. Whoever has
    no secret cannot try out keys that he guesses.
    """

    def __init__(self, secret: bytes) -> None:
        """Hash with `secret`, 16 to 64 bytes; raises ValueError for another length."""
        if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
            raise ValueError(
                f"the secret has {len(secret)} bytes: give {MIN_SECRET_BYTES} to "
                f"{MAX_SECRET_BYTES}, such as secrets.token_bytes(32), and keep it"
            )

        @lru_cache(_REMEMBERED)
        def digest(key: str) -> str:
            return hashlib.blake2b(key.encode(), key=secret, digest_size=_DIGEST_BYTES).hexdigest()

        self._digest = digest

    def __call__(self, key: str) -> str:
        """Return what is written in place of `key`."""
        return self._digest(key)
