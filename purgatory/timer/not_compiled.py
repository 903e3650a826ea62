"""Stands in for the module `cython` where that is not installed: this code runs as it is."""

from typing import Final, TypeVar

compiled: Final = False

T = TypeVar("T")


def cclass(cls: T) -> T:
    """Return `cls`, which stays a class of Python's."""
    return cls


def no_gc(cls: T) -> T:
    """Return `cls`, which the collector looks after like any other."""
    return cls
