"""What a watch key may be."""

from __future__ import annotations

from purgatory.errors import InvalidKeyError

MAX_KEY_LENGTH = 256


def check_key(key: str) -> None:
    """Raise InvalidKeyError unless `key` is 1 to 256 characters of UTF-8, none of them control.

    Raises TypeError for what is no string.
    """
    # The fast way for nearly every key. Some that are fine are not "printable": no-break spaces,
    # joiners, private use.
    try:
        if key.isprintable() and 0 < len(key) <= MAX_KEY_LENGTH:
            return
    except AttributeError:
        raise TypeError(f"key is {key!r}, not a string") from None
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidKeyError(
            f"a key has 1 to {MAX_KEY_LENGTH} characters; this one has {len(key)}: {key[:32]!r}"
        )
    for character in key:
        if character < " " or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff":
            raise InvalidKeyError(
                f"key {key[:64]!r} holds {character!r}: control characters and lone surrogates are "
                "not allowed in keys"
            )
