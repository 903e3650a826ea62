"""An application whose process does not end while Python takes its objects apart."""

import atexit
from threading import Event

atexit.register(print, "flushed the first")

from tests.acceptance.application import app  # noqa: E402  registered before this is imported

__all__ = ["app"]

atexit.register(print, "flushed the last")


class Lingering:
    """An object that is not taken apart."""

    def __init__(self) -> None:
        self._never = Event()

    def __del__(self) -> None:
        self._never.wait()


lingering = Lingering()
