"""What FastAPI's documentation of an application says of tokens and long polls.

Made with the document, so that requests pay nothing for it.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI

from purgatory.fastapi.declared_keys import declared_keys, has_long_polls
from purgatory.fastapi.routing.openapi import response_header
from purgatory.fastapi.servers.fastapi_internals import route_contexts

_REQUEST_HEADERS: Final = {
    "Prefer": "`wait=25`: wait for a response with another ETag, for so many seconds.",
    "If-None-Match": "The ETag of the response that the client has.",
}
_NOT_MODIFIED: Final = {
    "description": "The ETag is still the same, at the end of the wait.",
    "headers": {
        **response_header("ETag", "For If-None-Match of the next request."),
        **response_header("Preference-Applied", "The wait, or the maximum for a longer one."),
    },
}


def document_tokens(app: FastAPI, prefix: str) -> None:
    """Declare bearer tokens for our operations in OpenAPI, so that its pages offer to send one."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        schema = described()
        schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes.setdefault("bearer", {"type": "http", "scheme": "bearer"})
        for path, item in schema["paths"].items():
            for operation in item.values() if path.startswith(f"{prefix}/") else ():
                if "401" in operation["responses"]:
                    operation.setdefault("security", [{"bearer": []}])
        return schema

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's documented way to extend it


def document_long_polls(app: FastAPI) -> None:
    """Declare the headers and the 304 of the endpoints that LongPollMiddleware parks by their key.

    Those of `LongPollKey`: a key in a response's header is not known before.
    """
    described = app.openapi

    def openapi() -> dict[str, Any]:
        schema = described()
        if has_long_polls(app):
            for route in route_contexts(app):
                # Those of WebSockets have no methods.
                if "GET" in (getattr(route, "methods", None) or ()) and any(declared_keys(route)):
                    _declare_long_poll(schema["paths"].get(route.path_format, {}).get("get"))
        return schema

    app.openapi = openapi  # type: ignore[method-assign] # as above


def _declare_long_poll(operation: dict[str, Any] | None) -> None:
    if operation is None:
        # A route that is not in the document.
        return
    parameters = operation.setdefault("parameters", [])
    # One of the application's own may be a reference, which has neither.
    declared = {each["name"].lower() for each in parameters if each.get("in") == "header"}
    parameters += [
        {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}
        for name, description in _REQUEST_HEADERS.items()
        if name.lower() not in declared
    ]
    operation.setdefault("responses", {}).setdefault("304", _NOT_MODIFIED)
