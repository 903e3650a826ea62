"""Buckets of a width in proportion to what is in them, as in an HDR histogram."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

SUB_BITS: Final = 7
SUB_BUCKETS: Final = 1 << SUB_BITS
"""Buckets for each doubling of the value: none is wider than 1/128 of what is in it."""

_MOST_BITS: Final = 62


def bucket(value: int) -> int:
    """Return the bucket of a whole number of zero or more; larger numbers, later buckets.

    Below 256 each number has a bucket of its own.
    """
    if value < SUB_BUCKETS:
        return value
    shift = value.bit_length() - 1 - SUB_BITS
    return (shift << SUB_BITS) + (value >> shift)


def bucket_start(index: int) -> int:
    """Return the least number in a bucket."""
    if index < 2 * SUB_BUCKETS:
        return index
    shift = (index >> SUB_BITS) - 1
    return (index - (shift << SUB_BITS)) << shift


def bucket_end(index: int) -> int:
    """Return the greatest number in a bucket."""
    return bucket_start(index + 1) - 1


def bucket_column(value: Column) -> Column:
    """Return `bucket` of a column of non-negative numbers."""
    # A logarithm is a guess that may be off by one next to a power of two: mend it with integers.
    guess = F.floor(F.log2(F.greatest(value, F.lit(1)))).cast("int")
    power = F.call_function("shiftleft", F.lit(1).cast("long"), guess)
    bits = (
        F.when(power > value, guess - 1)
        .when(F.call_function("shiftright", value, guess) >= 2, guess + 1)
        .otherwise(guess)
    )
    shift = bits - SUB_BITS
    index = shift * SUB_BUCKETS + F.call_function("shiftright", value, F.greatest(shift, F.lit(0)))
    return F.when(value < SUB_BUCKETS, value).otherwise(index).cast("int")


def bucket_middle_column(index: Column) -> Column:
    """Return the middle of a bucket: at most 1/256 away from each number in it."""
    shift = F.greatest(F.shiftright(index, SUB_BITS) - 1, F.lit(0))
    start = F.call_function("shiftleft", (index - shift * SUB_BUCKETS).cast("long"), shift)
    width = F.call_function("shiftleft", F.lit(1).cast("long"), shift)
    return start + F.floor((width - 1) / 2).cast("long")
