"""What a process may find around it: closed standard streams, and another distribution."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Final


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


_FOLDER: Final = Path(__file__).parent
# Files of the other one, in all of its versions, and of none of ours.
_OTHERS: Final = ("service/_async", "service/_sync", "domain/messages")


def warn_of_another_distribution(folder: Path = _FOLDER) -> None:
    """Warn if files of the other distribution are in the folder of this package.

    Each has overwritten files of the other, so one of the two does not work.
    """
    if any((folder / name).exists() for name in _OTHERS):
        warnings.warn(
            "fastapi-purgatory and the circuit breaker purgatory are both installed, and share the "
            "import name: run `pip uninstall purgatory fastapi-purgatory`, then install only one",
            RuntimeWarning,
            stacklevel=3,
        )
