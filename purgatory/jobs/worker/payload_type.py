"""What a handler's second parameter says of its payload."""

from __future__ import annotations

import json
from typing import Any, Protocol

from purgatory.jobs.model.errors import InvalidPayloadError
from purgatory.jobs.model.spec import encode_payload

_PLAIN = (str, int, float, bool, list, dict, type(None))


class PayloadType(Protocol):
    """Encodes the payloads of one handler as JSON, and decodes them."""

    def encode(self, payload: Any, max_bytes: int) -> str:
        """Return compact JSON; raise InvalidPayloadError for what the handler would not take."""
        ...

    def decode(self, payload_json: str) -> Any:
        """Return what the handler takes; raise InvalidPayloadError."""
        ...


class AnyPayload:
    """Any JSON, as it is: for handlers that say nothing of their payload."""

    def encode(self, payload: Any, max_bytes: int) -> str:
        """Return compact JSON."""
        return encode_payload(payload, max_bytes)

    def decode(self, payload_json: str) -> Any:
        """Return what the JSON says."""
        return json.loads(payload_json)


class TypedPayload:
    """What a type annotation says, checked by pydantic."""

    def __init__(self, annotation: Any) -> None:
        """Prepare to check; raise TypeError where pydantic is missing or cannot do it."""
        try:
            # Here, because handlers without such an annotation need the standard library only.
            from pydantic import TypeAdapter, ValidationError
            from pydantic.errors import PydanticUserError
        except ImportError as exc:
            raise TypeError(
                f"a payload of type {annotation!r} is checked by pydantic, which is not installed: "
                "pip install pydantic, or annotate it as Any, dict, list, str, int, float or bool"
            ) from exc
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        except PydanticUserError as exc:
            raise TypeError(f"pydantic cannot check a payload of type {annotation!r}") from exc
        self._error = ValidationError

    def encode(self, payload: Any, max_bytes: int) -> str:
        """Return compact JSON of a payload that is an instance of the type, or JSON for one."""
        if not isinstance(payload, _PLAIN):
            payload = self._dump(payload)
        encoded = encode_payload(payload, max_bytes)
        self.decode(encoded)
        return encoded

    def decode(self, payload_json: str) -> Any:
        """Return an instance of the type."""
        try:
            return self._adapter.validate_json(payload_json)
        except self._error as exc:
            found = exc.errors(include_url=False, include_context=False, include_input=False)
            where = "".join(f"/{part}" for part in found[0]["loc"]) or "the payload"
            raise InvalidPayloadError(
                f"the payload is not what its handler takes: {where}: {found[0]['msg']}"
            ) from exc

    def _dump(self, payload: Any) -> Any:
        try:
            return self._adapter.dump_python(payload, mode="json", warnings="error")
        except (TypeError, ValueError) as exc:
            raise InvalidPayloadError(
                f"the payload is {type(payload).__name__}, which is not what its handler takes"
            ) from exc


class PlainPayload:
    """A dict, a list, a string, a number or a boolean, told apart without pydantic."""

    def __init__(self, kind: type) -> None:
        """Take `kind` only."""
        self._kind = kind

    def encode(self, payload: Any, max_bytes: int) -> str:
        """Return compact JSON."""
        encoded = encode_payload(payload, max_bytes)
        self.decode(encoded)
        return encoded

    def decode(self, payload_json: str) -> Any:
        """Return what the JSON says, if it is of the kind."""
        payload = json.loads(payload_json)
        kinds: Any = (int, float) if self._kind is float else self._kind
        is_bool = isinstance(payload, bool)
        if not isinstance(payload, kinds) or is_bool is not (self._kind is bool):
            raise InvalidPayloadError(
                f"the payload is {type(payload).__name__}, and its handler takes "
                f"{self._kind.__name__}"
            )
        return payload


def payload_type(annotation: Any) -> PayloadType:
    """Return what checks payloads that are annotated so; raise TypeError where nothing can."""
    if annotation is Any or annotation is object:
        return AnyPayload()
    if annotation in (str, int, float, bool, list, dict):
        return PlainPayload(annotation)
    if hasattr(annotation, "payload_type"):
        # A type of ours that checks itself, for where pydantic is not installed.
        own: PayloadType = annotation.payload_type()
        return own
    return TypedPayload(annotation)
