"""The rules for watch keys."""

from __future__ import annotations

from collections.abc import Hashable

from purgatory.errors import InvalidKeyError
from purgatory.timer import compiled

MAX_KEY_LENGTH = 256
# What a watched key takes besides its text: the string, its entry in a dict and in a tuple.
WATCH_BYTES = 128
# A second name, which the compiler may make a plain C integer of.
_MAX_KEY_LENGTH = MAX_KEY_LENGTH
_WATCH_BYTES = WATCH_BYTES


def check_key(key: str) -> None:
    """Raise InvalidKeyError unless `key` is 1 to 256 characters without controls and surrogates.

    Raises TypeError if it is not a string.
    """
    if not compiled and type(key) is str and key.isprintable() and 0 < len(key) <= MAX_KEY_LENGTH:
        # The fast path for nearly all keys. Some valid characters are not "printable", such as
        # no-break spaces, joiners and private use.
        return
    if not isinstance(key, str):
        raise TypeError(_not_a_string(key))
    # The plain string, also of a subclass that overrides its methods.
    text = key if type(key) is str else str.__str__(key)
    if not 0 < len(text) <= _MAX_KEY_LENGTH:
        raise InvalidKeyError(
            f"a key has 1 to {MAX_KEY_LENGTH} characters; this one has {len(text)}: {text[:32]!r}"
        )
    for character in text:
        if character < " " or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff":
            raise InvalidKeyError(
                f"key {text[:64]!r} holds {character!r}: control characters and lone surrogates "
                "are not allowed in keys"
            )


def watch_bytes(keys: tuple[Hashable, ...]) -> int:
    """Return about how much memory it takes to watch `keys`: 4 bytes a character unless ASCII."""
    taken = _WATCH_BYTES * len(keys)
    for key in keys:
        if isinstance(key, str):
            # A second name, whose type the compiled form knows.
            text = key
            taken += len(text) if text.isascii() else 4 * len(text)
    return taken


def _not_a_string(key: object) -> str:
    if isinstance(key, (list, tuple, set, frozenset, dict)):
        way_out = (
            "give each key as a string of its own, as in park(*keys, timeout=25), cursor(*keys), "
            "and fire(key) for each"
        )
    else:
        way_out = "give one such as 'order:42'"
    return f"key is {repr(key)[:64]}, not a string: {way_out}"
