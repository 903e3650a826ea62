"""Spark's filters as expressions of Arrow and as time bounds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


def column_of(given: Filter) -> str | None:
    """Return the column of a filter; None for a nested column."""
    path: tuple[str, ...] = getattr(given, "attribute", ())
    return path[0] if len(path) == 1 else None


def utc(value: datetime) -> datetime:
    """Return a time in UTC; a naive one is taken for UTC."""
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def arrow_expression(filters: Iterable[Filter], schema: pa.Schema) -> pc.Expression | None:
    """Return the part of `filters` that Arrow can evaluate, or None. Spark checks all again."""
    expression: pc.Expression | None = None
    for given in filters:
        part = _expression(given, schema)
        if part is not None:
            expression = part if expression is None else expression & part
    return expression


def time_bounds(filters: Iterable[Filter], column: str) -> tuple[datetime | None, datetime | None]:
    """Return the inclusive bounds of a time column; None for no bound."""
    low: datetime | None = None
    high: datetime | None = None
    for given in filters:
        if column_of(given) != column or not isinstance(getattr(given, "value", None), datetime):
            continue
        value = utc(given.value)  # type: ignore[attr-defined] # it has one: see above
        if isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual):
            low = value if low is None else max(low, value)
        if isinstance(given, EqualTo | LessThan | LessThanOrEqual):
            high = value if high is None else min(high, value)
    return low, high


def _expression(given: Filter, schema: pa.Schema) -> pc.Expression | None:
    column = column_of(given)
    if column is None or column not in schema.names:
        return None
    field, type_ = pc.field(column), schema.field(column).type
    if isinstance(given, IsNull | IsNotNull):
        return field.is_null() if isinstance(given, IsNull) else field.is_valid()
    if isinstance(given, StringStartsWith):
        return pc.starts_with(field, given.value)
    if isinstance(given, In):
        values = [_value(value) for value in given.value if value is not None]
        return field.isin(pa.array(values, type_))
    name = _COMPARISONS.get(type(given))
    if name is None or pa.types.is_nested(type_):
        return None
    value = pa.scalar(_value(given.value), type_)  # type: ignore[attr-defined] # a comparison
    return getattr(pc, name)(field, value)


def _value(value: Any) -> Any:
    return utc(value) if isinstance(value, datetime) else value
