"""Columns of tables as arrays of NumPy: a year has millions of rows, too many as Python objects.

Neither Arrow's conversion to NumPy nor that of times to Python's is used: they import pandas, which
takes longer than the rest of a report's imports.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def integers(column: pa.ChunkedArray) -> Integers:
    """Return a column of whole numbers without nulls."""
    return np.from_dlpack(column.cast(pa.int64()).combine_chunks()).astype(np.int64, copy=False)


def integers_or(column: pa.ChunkedArray, missing: int) -> Integers:
    """Return a column of whole numbers, with `missing` in place of nulls."""
    is_known = np.from_dlpack(column.is_valid().cast(pa.int8()).combine_chunks()).astype(bool)
    found = np.full(len(column), missing, np.int64)
    found[is_known] = integers(column.drop_null())
    return found


def floats(column: pa.ChunkedArray) -> Floats:
    """Return a column of numbers without nulls."""
    return np.from_dlpack(column.cast(pa.float64()).combine_chunks()).astype(np.float64, copy=False)


def micros(column: pa.ChunkedArray) -> Integers:
    """Return a column of times, as microseconds since 1970."""
    return integers(column.cast(pa.timestamp("us", "UTC")))


def coded(column: pa.ChunkedArray) -> tuple[tuple[str, ...], Integers]:
    """Return the different texts of a column, and the place of each row's text among them."""
    is_coded = pa.types.is_dictionary(column.type)
    found = (column if is_coded else column.dictionary_encode()).unify_dictionaries()
    found = found.combine_chunks()
    places = np.from_dlpack(found.indices).astype(np.int64)
    return tuple(found.dictionary.to_pylist()), places
