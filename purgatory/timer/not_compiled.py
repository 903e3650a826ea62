"""Stands in for the module `cython` where that is not installed: this code runs as it is."""

from typing import Final

compiled: Final = False
