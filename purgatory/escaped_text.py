"""Text from outside, escaped for one line of a log, an error or a terminal."""

from __future__ import annotations


def escaped(text: str) -> str:
    r"""Return `text` with control characters and the like escaped, such as `\n` and `\x1b`.

    Otherwise a line feed in it could forge a line of a log, and an escape sequence could control a
    terminal.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
