"""Responses of Starlette's that are no more than a head and a body."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE

from purgatory.fastapi.http.raw_response import RawResponse

# They say how long a body is, or what becomes of the connection: for the server to deal with.
_OF_THE_SERVER: Final = frozenset({b"connection", b"transfer-encoding", b"upgrade"})
_WITHOUT_BODY: Final = frozenset({204, 304})


def plain_response(response: Response) -> RawResponse | None:
    """Return the answer that `response` is; None for one that has to be run, or refused."""
    if type(response).__call__ is not Response.__call__ or response.background is not None:
        return None
    body = bytes(response.body)
    length = b"0" if response.status_code in _WITHOUT_BODY else None
    for name, value in response.raw_headers:
        if name in _OF_THE_SERVER or HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
            return None
        if name == b"content-length":
            length = value
    if length != b"%d" % len(body):
        return None
    return RawResponse(response.status_code, response.raw_headers, body)
