"""Log-linear buckets of proportional width, as in an HDR histogram."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 # Spark's own name for it

SUB_BITS: Final = 7
SUB_BUCKETS: Final = 1 << SUB_BITS
"""Buckets for each doubling of the value: none is wider than 1/128 of its values."""

COARSE: Final = SUB_BUCKETS >> 3
"""So many buckets in a row, from a multiple of this on, are one of 8 for each doubling."""


def bucket(value: int) -> int:
    """Return the index of the bucket of a whole number of zero or more; it grows with the number.

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


def bucket_column(value: Column, sub_bits: int = SUB_BITS) -> Column:
    """Return `bucket` of a column of whole numbers; a negative one counts as zero.

    With other `sub_bits` each doubling has 2 ** sub_bits buckets.
    """
    # A logarithm may be off by one next to a power of two. There both shifts give the same bucket:
    # 2 ** k - 1 is the last of its power with either, and 2 ** k the first. A correction would be
    # more code for each row than Java compiles.
    bits = F.floor(F.log2(F.greatest(value, F.lit(1)))).cast("int")
    shift = F.greatest(bits - sub_bits, F.lit(0))
    index = shift * (1 << sub_bits) + F.call_function("shiftright", value, shift)
    return F.when(value < 0, 0).otherwise(index).cast("int")


def bucket_middle_column(index: Column) -> Column:
    """Return the middle of a bucket: within 1/256 of each number in it."""
    shift = F.greatest(F.shiftright(index, SUB_BITS) - 1, F.lit(0))
    start = F.call_function("shiftleft", (index - shift * SUB_BUCKETS).cast("long"), shift)
    width = F.call_function("shiftleft", F.lit(1).cast("long"), shift)
    return start + F.floor((width - 1) / 2).cast("long")
