"""Labels of operations: what an application says of each, beside its keys."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

logger = logging.getLogger("purgatory.journal")

MAX_LABELS: Final = 8
MAX_VALUE_LENGTH: Final = 128
"""Characters of a value; the rest is cut off."""
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class OperationLabel:
    """A label that is read from the operation itself, on every server."""

    read: Callable[[Any], object]


def _wait_id(operation: object) -> str | None:
    # Without the owner before it: an identity may be long, and what is cut off is the end.
    found: str | None = getattr(operation, "wait_id", None)
    return found and found.rpartition("/")[2]


WAIT_ID: Final = OperationLabel(_wait_id)
"""The `Wait-Id` that a client gave its request."""
CLIENT: Final = OperationLabel(lambda operation: getattr(operation, "client", None))
"""The client of a parked request, as far as it is known: its identity or its address."""

Label = str | OperationLabel | Callable[[], object]
"""A text, WAIT_ID, CLIENT, or a function that returns a text for the operation that begins, or
None for no label."""
LabelPairs = tuple[tuple[str, str], ...]
"""The labels of an operation, as names and values."""


class Labels:
    """The labels of a journal: texts, which all of its rows have, and functions.

    `read` is called by the purgatory's thread for each operation, in the context (`contextvars`)
    of the one that parks; everything else by the journal's.
    """

    def __init__(self, labels: Mapping[str, Label]) -> None:
        """Check the labels. Raises ValueError for too many, or an invalid name or text."""
        if len(labels) > MAX_LABELS:
            raise ValueError(f"{len(labels)} labels: give at most {MAX_LABELS}")
        for name, label in labels.items():
            if NAME.fullmatch(name) is None:
                raise ValueError(
                    f"label {name!r}: give a name of up to 64 letters, digits, '_', '.' and '-'"
                )
            if isinstance(label, str) and len(label) > MAX_VALUE_LENGTH:
                raise ValueError(
                    f"label {name!r} has {len(label)} characters: give at most {MAX_VALUE_LENGTH}"
                )
        texts = ((name, label) for name, label in labels.items() if isinstance(label, str))
        self.texts: LabelPairs = tuple((name, _valid(text)) for name, text in texts)
        self._functions = tuple(
            (name, label.read if isinstance(label, OperationLabel) else _of_context(label))
            for name, label in labels.items()
            if not isinstance(label, str)
        )
        self._failed: set[str] = set()

    @property
    def has_functions(self) -> bool:
        """Whether there is something to `read`."""
        return bool(self._functions)

    def read(self, operation: object) -> list[object]:
        """Return the values of the functions; None for one that fails, which is logged once."""
        values: list[object] = []
        for name, function in self._functions:
            try:
                values.append(function(operation))
            except Exception:
                values.append(None)
                if name not in self._failed:
                    self._failed.add(name)
                    logger.exception(
                        "label %s failed", name, extra={"action": "journal-label-failed"}
                    )
        return values

    def pairs(self, values: Sequence[object]) -> LabelPairs:
        """Return all labels of an operation, of which `values` were read."""
        read = zip(self._functions, values, strict=True)
        return (
            *self.texts,
            *((name, _valid(text)) for (name, _), text in read if text is not None),
        )


def _of_context(function: Callable[[], object]) -> Callable[[Any], object]:
    return lambda _: function()


def _valid(value: object) -> str:
    text = (value if isinstance(value, str) else str(value))[:MAX_VALUE_LENGTH]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
