"""Secrets of pydantic in payloads: their dump is asterisks, and the secret would be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from purgatory.job_errors import InvalidPayloadError
from purgatory.json_value import stored_value

# In the dump of each SecretStr, SecretBytes and Secret that is not empty.
_MASK = "***"


def refuse_masked_model(payload: Any, payload_json: str) -> None:
    """Raise what `refuse_masked_secrets` raises if `payload` is a pydantic model."""
    dump = getattr(type(payload), "model_dump", None)
    if dump is not None:
        refuse_masked_secrets(payload_json, lambda: dump(payload))


def refuse_masked_secrets(payload_json: str, dump: Callable[[], Any]) -> None:
    """Raise InvalidPayloadError if a secret of the payload is asterisks in `payload_json`.

    `dump` returns the payload as Python objects, secrets as they are. It is called only if there
    are asterisks. Accepts a secret with a serializer of its own, which writes something else, and
    what pydantic dumps as JSON only.
    """
    if _MASK not in payload_json:
        return
    try:
        dumped = dump()
    except (TypeError, InvalidPayloadError):
        # As for a set of models: their dumps are dicts, which a set cannot have.
        return
    for where, kind in _masked_secrets(dumped, stored_value(payload_json), ""):
        raise InvalidPayloadError(
            f"{where or 'the payload'} is a {kind}, which pydantic writes as asterisks: its secret "
            "would be lost. Defer an id by which the handler finds the secret; or, if the store "
            "may have it in clear text, declare it as str, or give it a field_serializer"
        )


def _masked_secrets(value: Any, dumped: Any, where: str) -> Iterable[tuple[str, str]]:
    """Yield the places and the types of the secrets in `value` that are masked in `dumped`."""
    children: Iterable[tuple[Any, Any, Any]] = ()
    if hasattr(value, "get_secret_value"):
        # `str` of a SecretBytes is that of bytes, b'***'.
        if dumped and dumped == str(value).strip("b'"):
            yield where, type(value).__name__
    elif isinstance(value, dict) and isinstance(dumped, dict):
        # By their order: in JSON, all keys are strings.
        children = chain(
            zip(dumped, value, dumped, strict=False),
            zip(dumped, value.values(), dumped.values(), strict=False),
        )
    elif isinstance(value, Iterable) and isinstance(dumped, list):
        children = zip(range(len(dumped)), value, dumped, strict=False)
    for name, child, child_dumped in children:
        yield from _masked_secrets(child, child_dumped, f"{where}/{name}")
