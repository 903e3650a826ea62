"""Commands of the pipeline, and the types of their options."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from purgatory.log_text import redacted
from purgatory.pipeline.run import Run, check_engine, machine_memory

LEAST_HEAP_MIB = 512
"""Spark itself refuses to start with much less."""

_MASTER = r"yarn|local(\[([1-9]\d*|\*)(,\d+)?\])?|local-cluster\[.+\]|(spark|k8s|sc)://.+"
_MIB = {"": 2**-20, "k": 2**-10, "m": 1, "g": 2**10, "t": 2**20}


NumberOption = tuple[str, Callable[[str], float], str, float, str]
"""A flag, the type of its value, its unit, its default, and the text of its help."""


def add_numbers(parser: argparse.ArgumentParser, *options: NumberOption) -> None:
    """Add options that are numbers with defaults, which their help mentions."""
    for flag, parse, unit, default, text in options:
        shown = "%(default)s" if isinstance(default, int) else "%(default)g"
        parser.add_argument(
            flag, type=parse, metavar=unit, default=default, help=f"{text} (default {shown})"
        )


def folder_address(text: str) -> str:
    """Return the address of a folder, which must not be empty, such as an unset variable."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: give a folder")
    return text


def shown(address: str) -> str:
    """Return an address without credentials, for the log; the path of a local folder as it is."""
    return redacted(address) if "://" in address else address


def whole(least: int) -> Callable[[str], int]:
    """Return a type for whole numbers of `least` or more."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of {least:,} or more")
        return number

    return parse


def number(allowed: str, is_allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a type for finite numbers for which `is_allowed` holds; `allowed` says it in words."""

    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not (math.isfinite(found) and is_allowed(found)):
            raise argparse.ArgumentTypeError(f"{text!r}: give a number {allowed}")
        return found

    return parse


POSITIVE = number("above 0", lambda found: found > 0)


def master(text: str) -> str:
    """Return `text` if it is the URL of a Spark master."""
    if re.fullmatch(_MASTER, text, re.ASCII) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give local[2], spark://HOST:PORT, k8s://HOST:PORT, yarn, or sc://HOST:PORT"
        )
    return text


def heap(text: str) -> str:
    """Return `text` if it is a heap size as Java reads it (1g, 1536m) that this machine has."""
    found = re.fullmatch(r"(\d+)([kmgt]?)", text.lower(), re.ASCII)
    mib = 0 if found is None else int(found[1]) * _MIB[found[2]]
    if mib < LEAST_HEAP_MIB:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give {LEAST_HEAP_MIB}m or more, such as 1g or 1536m"
        )
    # Java itself accepts any size, as long as it is not used.
    available = machine_memory()
    if available is not None and mib > available / 2**20:
        raise argparse.ArgumentTypeError(
            f"{text!r}: this machine has {available / 2**30:.1f} GiB of memory: give less, such as "
            f"{max(LEAST_HEAP_MIB, available // 2**21)}m"
        )
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One job as a command: `python -m purgatory.pipeline NAME`.

    A new one is added to `purgatory.pipeline.cli.commands.COMMANDS`.
    """

    name: str
    help: str
    run: Callable[[Run], str | None]
    """Runs the job and returns its output on stdout, if any. Raises PurgatoryError or ValueError
    for errors that the user can correct."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    """Adds the options that not all commands have."""
    check: Callable[[argparse.Namespace], object] = check_engine
    """Raises ValueError for options that contradict each other, before Spark is started."""
