"""Text from outside, made safe for one line of a log or an error."""

from __future__ import annotations


def printable(text: str) -> str:
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
