"""A stand-in for the module `cython` if that is not installed: the core then runs as it is."""

from typing import Final, TypeVar

compiled: Final = False

T = TypeVar("T")


def cclass(cls: T) -> T:
    """Return `cls` unchanged."""
    return cls


def no_gc(cls: T) -> T:
    """Return `cls` unchanged."""
    return cls
