"""Standard streams that are closed, as by `>&-` in a shell."""

from __future__ import annotations

import os
import sys


def discard_closed_streams() -> None:
    """Replace standard streams that are closed by os.devnull.

    Python has None for such a stream, which loggers and terminals do not accept. For commands,
    before they write or open anything.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number, which is that of the stream: no socket gets it.
            descriptor = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
            # For the processes of workers, which would find it closed again.
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))
