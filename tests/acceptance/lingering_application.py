"""An application whose process does not end while Python takes its objects apart."""

from threading import Event

from tests.acceptance.application import app

__all__ = ["app"]


class Lingering:
    """An object that is not taken apart."""

    def __init__(self) -> None:
        self._never = Event()

    def __del__(self) -> None:
        self._never.wait()


lingering = Lingering()
