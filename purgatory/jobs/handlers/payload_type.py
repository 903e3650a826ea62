"""Payload types: how the annotation of a handler's second parameter checks its payloads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin

from purgatory.job_errors import InvalidPayloadError
from purgatory.jobs.model.spec import PAYLOAD, encode_payload
from purgatory.json_value import TOO_DEEP, json_value, stored_value
from purgatory.log_text import escaped

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


NULL = "null"
_JSON_TYPES = (str, int, float, bool, list, dict, type(None))


class PayloadType(Protocol):
    """Encodes the payloads of one handler as JSON, and decodes them."""

    def encode(self, payload: Any, max_bytes: int) -> str:
        """Return compact JSON; raise InvalidPayloadError unless the handler accepts the payload."""
        ...

    def decode(self, payload_json: str) -> Any:
        """Return the handler's argument; raise InvalidPayloadError."""
        ...


class AnyPayload:
    """Any JSON, for handlers without an annotation."""

    def encode(self, payload: Any, max_bytes: int) -> str:
        """Return compact JSON; a pydantic model is dumped."""
        encoded = _encode_plain(json_value(payload, PAYLOAD), max_bytes)
        refuse_masked_model(payload, encoded)
        return encoded

    def decode(self, payload_json: str) -> Any:
        """Return the decoded JSON."""
        return stored_value(payload_json)


class NoPayload(AnyPayload):
    """None, for handlers of (job) only."""

    def __init__(self, handler: str) -> None:
        """Name `handler` in errors."""
        self._handler = handler

    def encode(self, payload: Any, max_bytes: int) -> str:
        """Return the JSON of None; raise InvalidPayloadError for anything else."""
        if payload is not None:
            raise InvalidPayloadError(
                f"handler {self._handler!r} is a function of (job) and would not get the payload: "
                "declare it as (job, payload), or defer the job without a payload"
            )
        return NULL


class OptionalPayload:
    """None, or what another type accepts, for handlers whose second parameter has a default."""

    def __init__(self, kind: PayloadType) -> None:
        """Accept None, and what `kind` accepts."""
        self._kind = kind

    def encode(self, payload: Any, max_bytes: int) -> str:
        """Return compact JSON."""
        return NULL if payload is None else self._kind.encode(payload, max_bytes)

    def decode(self, payload_json: str) -> Any:
        """Return the handler's argument; None for its default."""
        return None if payload_json == NULL else self._kind.decode(payload_json)


class TypedPayload:
    """A type that pydantic checks."""

    def __init__(self, annotation: Any) -> None:
        """Build the checker; raise TypeError if pydantic is missing or cannot check the type."""
        try:
            # Imported here: handlers without such an annotation need the standard library only.
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
            reason = exc.message.partition("\n")[0].rstrip(".")
            raise TypeError(
                f"pydantic cannot check a payload of type {annotation!r}: {reason}"
            ) from exc
        self._members = _members(annotation)
        self._error = ValidationError

    def encode(self, payload: Any, max_bytes: int) -> str:
        """Return compact JSON of an instance of the type, or of plain JSON values that fit it."""
        if isinstance(payload, _JSON_TYPES):
            encoded = self._encode_json(payload, max_bytes)
            self.decode(encoded)
            return encoded
        kind = next((each for each in type(payload).__mro__ if each in self._members), None)
        dumped = self._dump(payload)
        self._refuse_lost_fields(payload, dumped, kind)
        encoded = self._encode_dumped(payload, dumped, max_bytes)
        decoded = _origin(type(self.decode(encoded)))
        # pydantic dumps an instance of any class that has the fields, and a union is the member
        # that fits best, which JSON alone may not say.
        if decoded is not kind and decoded in self._members:
            raise InvalidPayloadError(
                f"the payload is {type(payload).__name__}, and its handler would get it as "
                f"{decoded.__name__}: give an instance of that, or, if it takes both, give each a "
                "Literal field that tells them apart"
            )
        return encoded

    def decode(self, payload_json: str) -> Any:
        """Return an instance of the type."""
        try:
            # By the names of fields, as they are dumped, and by aliases, as clients may send them.
            return self._adapter.validate_json(payload_json, by_alias=True, by_name=True)
        except self._error as exc:
            found = exc.errors(include_url=False, include_context=False, include_input=False)
            where = "".join(f"/{part}" for part in found[0]["loc"]) or "the payload"
            # Without the original error, whose text repeats parts of the payload.
            raise InvalidPayloadError(
                f"the payload is not what its handler takes: {escaped(where)[:200]}: "
                f"{found[0]['msg']}"
            ) from None

    def _encode_json(self, payload: Any, max_bytes: int) -> str:
        try:
            return encode_payload(payload, max_bytes)
        except InvalidPayloadError as exc:
            # A list or a dict may contain instances.
            try:
                dumped = self._dump(payload)
            except InvalidPayloadError:
                raise exc from None
            return self._encode_dumped(payload, dumped, max_bytes)

    def _encode_dumped(self, payload: Any, dumped: Any, max_bytes: int) -> str:
        encoded = encode_payload(dumped, max_bytes)
        refuse_masked_secrets(encoded, lambda: self._dump(payload, "python"))
        return encoded

    def _refuse_lost_fields(self, payload: Any, dumped: Any, kind: type | None) -> None:
        # An instance of a subclass is dumped as the annotated class, without a word.
        if kind is None or kind is type(payload) or not isinstance(dumped, dict):
            return
        lost = _dumped_fields(type(payload)) - _dumped_fields(kind) - dumped.keys()
        if lost:
            raise InvalidPayloadError(
                f"the payload is {type(payload).__name__}, whose {min(lost)!r} its handler would "
                f"not get: that takes {kind.__name__}; annotate it with {type(payload).__name__}, "
                f"or with a union of both, told apart by a Literal field, or give a {kind.__name__}"
            )

    def _dump(self, payload: Any, mode: Literal["json", "python"] = "json") -> Any:
        try:
            # Not by aliases: those for the output may not be those for the input. And without what
            # is computed, which is no input.
            return self._adapter.dump_python(
                payload, mode=mode, by_alias=False, round_trip=True, warnings="error"
            )
        except (TypeError, ValueError) as exc:
            if "depth exceeded" in str(exc):
                raise InvalidPayloadError(f"the payload {TOO_DEEP}") from exc
            # As above.
            raise InvalidPayloadError(
                f"the payload is {type(payload).__name__}, which is not what its handler takes"
            ) from None


class PlainPayload:
    """A dict, list, string, number or boolean, checked without pydantic."""

    def __init__(self, kind: type) -> None:
        """Accept `kind` only."""
        self._kind = kind

    def encode(self, payload: Any, max_bytes: int) -> str:
        """Return compact JSON."""
        encoded = _encode_plain(payload, max_bytes)
        self.decode(encoded)
        return encoded

    def decode(self, payload_json: str) -> Any:
        """Return the decoded JSON if it is of the kind."""
        payload = stored_value(payload_json)
        kinds: Any = (int, float) if self._kind is float else self._kind
        is_bool = isinstance(payload, bool)
        if not isinstance(payload, kinds) or is_bool is not (self._kind is bool):
            raise InvalidPayloadError(
                f"the payload is {type(payload).__name__}, and its handler takes "
                f"{self._kind.__name__}"
            )
        return payload


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union; of anything else, itself."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(member for each in get_args(annotation) for member in _members(each))
    return (_origin(annotation),)


def _origin(kind: Any) -> Any:
    """Return the class of a generic that has arguments; of anything else, itself."""
    # A pydantic model with arguments is a subclass of the model.
    arguments = getattr(kind, "__pydantic_generic_metadata__", {})
    return arguments.get("origin") or get_origin(kind) or kind


def _dumped_fields(kind: type) -> set[str]:
    """Return the names of the fields of a model or a dataclass, but those that are not dumped."""
    checked = getattr(kind, "__pydantic_fields__", {})
    names = set(checked)
    if dataclasses.is_dataclass(kind):
        # Without ClassVar and InitVar, which an instance does not have.
        names = {each.name for each in dataclasses.fields(kind) if each.init}
    return {name for name in names if not getattr(checked.get(name), "exclude", None)}


def _encode_plain(payload: Any, max_bytes: int) -> str:
    try:
        return encode_payload(payload, max_bytes)
    except InvalidPayloadError as exc:
        if not isinstance(exc.__cause__, TypeError):
            raise
        raise InvalidPayloadError(
            f"{exc}; or annotate the handler's parameter with the type of the payload"
        ) from exc.__cause__


def payload_type(annotation: Any) -> PayloadType:
    """Return the payload type for an annotation; raise TypeError if nothing can check it."""
    if annotation is Any or annotation is object:
        return AnyPayload()
    if annotation in (str, int, float, bool, list, dict):
        return PlainPayload(annotation)
    if hasattr(annotation, "purgatory_payload_type"):
        # One of our own types, which checks itself: pydantic may not be installed.
        own: PayloadType = annotation.purgatory_payload_type()
        return own
    return TypedPayload(annotation)
