"""What the values of options may be: types for argparse."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable

from purgatory.pipeline.spark.machine_memory import machine_memory

LEAST_HEAP_MIB = 512
"""Spark itself refuses to start with much less."""

_MASTER = r"yarn|local(\[([1-9]\d*|\*)(,\d+)?\])?|local-cluster\[.+\]|(spark|k8s)://.+"
_MIB = {"": 2**-20, "k": 2**-10, "m": 1, "g": 2**10, "t": 2**20}


def whole(least: int) -> Callable[[str], int]:
    """Return a type for whole numbers from `least` on."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of {least:,} or more")
        return number

    return parse


def number(
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> Callable[[str], float]:
    """Return a type for finite numbers within bounds: `least` and `most` are allowed themselves."""
    bounds = (
        f"of {least:,} or more" if least > -math.inf else "",
        f"above {above:,}" if above > -math.inf else "",
        f"up to {most:,}" if most < math.inf else "",
        f"below {below:,}" if below < math.inf else "",
    )
    said = " and ".join(bound for bound in bounds if bound)

    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        # Written so that NaN, which compares as false, is refused.
        if not (math.isfinite(found) and least <= found <= most and above < found < below):
            raise argparse.ArgumentTypeError(f"{text!r}: give a number {said}")
        return found

    return parse


def master(text: str) -> str:
    """Return the address of a master of Spark."""
    if re.fullmatch(_MASTER, text, re.ASCII) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give local[2], spark://HOST:PORT, k8s://HOST:PORT or yarn"
        )
    return text


def heap(text: str) -> str:
    """Return the size of a heap, as Java reads it: 1g, 1536m; no more than this machine has."""
    found = re.fullmatch(r"(\d+)([kmgt]?)", text.lower(), re.ASCII)
    mib = 0 if found is None else int(found[1]) * _MIB[found[2]]
    if mib < LEAST_HEAP_MIB:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give {LEAST_HEAP_MIB}m or more, such as 1g or 1536m"
        )
    # Java takes any, as long as it is not used.
    there = machine_memory()
    if there is not None and mib > there / 2**20:
        raise argparse.ArgumentTypeError(
            f"{text!r}: this machine has {there / 2**30:.1f} GiB of memory: give less, such as "
            f"{max(LEAST_HEAP_MIB, there // 2**21)}m"
        )
    return text
