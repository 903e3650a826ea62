"""Values on the command line."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer

from purgatory.json_value import TOO_DEEP, is_too_deep


def json_argument(text: str | None, *, name: str) -> Any:
    """Return a JSON value, `-` for standard input; refuse other text."""
    if text is None:
        return None
    if text == "-":
        text = sys.stdin.read()
    try:
        if is_too_deep(text.encode()):
            raise typer.BadParameter(f"{name} {TOO_DEEP}")
        return json.loads(text)
    except ValueError as exc:
        example = json.dumps(text[:40])
        raise typer.BadParameter(
            f"{name} is {text[:40]!r}, not JSON ({exc}): a text has quotes of its own, '{example}'"
        ) from None
