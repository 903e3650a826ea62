"""The payload of a callback: the HTTP request to send when the job is due."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from purgatory.job_errors import InvalidPayloadError
from purgatory.jobs.model.spec import encode_payload
from purgatory.json_value import stored_value

CALLBACK = "purgatory.callback"
"""The name of the handler that sends callbacks."""

METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
MAX_URL = 2_048
MAX_HEADERS = 20
MAX_HEADER_VALUE = 4_096
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}")
_URL_FIRST = '{"url":'
_decode_at = json.JSONDecoder().raw_decode
# With no blank at either end (RFC 9110, 5.5): a request with one cannot be sent.
_VALUE = re.compile(r"([!-~]([\t -~]*[!-~])?)?")
# Headers that we set ourselves, or that decide where a request ends.
_RESERVED = frozenset(
    (
        *("connection", "content-length", "content-type", "expect", "host", "idempotency-key"),
        *("keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """An HTTP request. Create it with `of`, which checks it."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    payload: Any = None
    """Sent as JSON."""

    @classmethod
    def of(
        cls,
        url: str,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        payload: Any = None,
    ) -> Callback:
        """Return a checked callback; raise InvalidPayloadError.

        Whether the address may be called is for the handler to decide.
        """
        headers = {} if headers is None else headers
        if not _is_url(url):
            raise InvalidPayloadError(
                f"the callback's url is {str(url)[:64]!r}: give http:// or https:// and a host, no "
                f"user name, no fragment, in up to {MAX_URL} printable ASCII characters",
                param="url",
            )
        if method not in METHODS:
            raise InvalidPayloadError(
                f"the callback's method is {str(method)[:32]!r}: give one of {', '.join(METHODS)}",
                param="method",
            )
        if len(headers) > MAX_HEADERS:
            raise InvalidPayloadError(
                f"a callback has up to {MAX_HEADERS} headers; this one has {len(headers)}: send "
                "the rest in its payload",
                param="headers",
            )
        for name, value in headers.items():
            _check_header(name, value)
        return cls(url=url, method=method, headers=dict(headers), payload=payload)

    def document(self) -> dict[str, Any]:
        """Return the JSON object that is stored."""
        # In the order of the fields, with the URL first.
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def purgatory_payload_type(cls) -> CallbackPayload:
        """Return the payload type, for `purgatory.jobs.handlers.payload_type`."""
        return CallbackPayload()


class CallbackPayload:
    """Encodes and decodes callbacks, without pydantic."""

    def __init__(self, check: Callable[[Callback], object] | None = None) -> None:
        """Call `check` with each callback that is encoded: it may raise InvalidPayloadError."""
        self._check = check

    def encode(self, payload: Any, max_bytes: int) -> str:
        """Return compact JSON of a Callback, or of a dict with its fields."""
        # One that was not made with `of` is not checked yet.
        document = payload.document() if isinstance(payload, Callback) else payload
        callback = _of_document(document)
        if self._check is not None:
            self._check(callback)
        return encode_payload(callback.document(), max_bytes)

    def decode(self, payload_json: str) -> Callback:
        """Return the callback; raise InvalidPayloadError."""
        return _of_document(stored_value(payload_json))


def stored_url(payload_json: str) -> str:
    """Return the URL of a stored callback, without decoding the rest; "" if it has none."""
    if payload_json.startswith(_URL_FIRST):
        # As `document` has it: payloads may be large, and workers claim hundreds of jobs in a turn.
        url, _ = _decode_at(payload_json, len(_URL_FIRST))
    else:
        document = stored_value(payload_json)
        url = document.get("url") if isinstance(document, dict) else None
    return url if isinstance(url, str) else ""


def _of_document(document: Any) -> Callback:
    if not isinstance(document, dict) or "url" not in document:
        raise InvalidPayloadError("a callback is an object with a url")
    unknown = document.keys() - {"url", "method", "headers", "payload"}
    if unknown:
        raise InvalidPayloadError(
            f"a callback has no {min(map(str, unknown))[:32]!r}: it has url, method, headers and "
            "payload"
        )
    if not isinstance(document.get("headers", {}), dict):
        raise InvalidPayloadError("the callback's headers are an object of names and texts")
    return Callback.of(**document)


def _is_url(url: Any) -> bool:
    if not isinstance(url, str) or not 0 < len(url) <= MAX_URL:
        return False
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return False
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and "@" not in parts.netloc
            and not parts.fragment
            # Reading it raises ValueError for an invalid port.
            and parts.port != 0
        )
    except ValueError:
        return False


def _check_header(name: Any, value: Any) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidPayloadError(
            f"the callback's header {str(name)[:64]!r} is not a field name: give 1 to 128 token "
            "characters (RFC 9110, 5.6.2)",
            param="headers",
        )
    if name.lower() in _RESERVED or name.lower().startswith("purgatory-"):
        raise InvalidPayloadError(
            f"the callback's header {name[:64]!r} is set by the service: omit it",
            param="headers",
        )
    is_text = isinstance(value, str) and len(value) <= MAX_HEADER_VALUE
    if not is_text or _VALUE.fullmatch(value) is None:
        raise InvalidPayloadError(
            f"the value of the callback's header {name[:64]!r} is not printable ASCII of up to "
            f"{MAX_HEADER_VALUE} characters, with no blank at either end",
            param="headers",
        )
