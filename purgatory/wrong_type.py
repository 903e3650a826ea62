"""Errors for arguments of a wrong type, and the names of functions in messages."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any


def check_type(name: str, value: object, wanted: type, example: str) -> None:
    """Raise TypeError unless `value` is a `wanted`; it says to give `example`."""
    if not isinstance(value, wanted):
        raise wrong_type(name, value, example)


def wrong_type(name: str, value: object, example: str) -> TypeError:
    """Return the error for the argument `name`."""
    return TypeError(f"{name} is {repr(value)[:100]}: give {example}")


def check_keys_type(keys: object) -> None:
    """Raise TypeError for a single string, which would be one key a letter, and for no iterable."""
    if isinstance(keys, str):
        short = keys[:64]
        raise TypeError(f"keys is the string {short!r}: give a list of keys, such as [{short!r}]")
    if not hasattr(keys, "__iter__"):
        raise wrong_type("keys", keys, "a list of keys, such as ['order:42']")


def check_numbers(settings: Any) -> None:
    """Raise TypeError for a field of the dataclass `settings` that is no number."""
    for field in fields(settings):
        name, value = field.name, getattr(settings, field.name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise wrong_type(name, value, "a number, such as 10")


def name_of(function: object) -> str:
    """Return where a function is defined: `module.name`; the class of an object that is called."""
    while isinstance(function, partial):
        function = function.func
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
