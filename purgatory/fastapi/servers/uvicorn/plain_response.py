"""Starlette responses that consist of a head and a body, and nothing to run."""

from __future__ import annotations

import re
from typing import Final

from starlette.responses import Response

from purgatory.fastapi.http.raw_response import RawResponse

# These decide on the length of the body or on the connection: the server has to see them.
_OF_THE_SERVER: Final = frozenset({b"connection", b"transfer-encoding", b"upgrade"})
_WITHOUT_BODY: Final = frozenset({204, 304})
# RFC 9110, section 5.
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


def plain_response(response: Response) -> RawResponse | None:
    """Return `response` as a RawResponse; None if it has to be run, or is not well-formed."""
    if type(response).__call__ is not Response.__call__ or response.background is not None:
        return None
    body = bytes(response.body)
    length = b"0" if response.status_code in _WITHOUT_BODY else None
    for name, value in response.raw_headers:
        if name in _OF_THE_SERVER or not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            return None
        if name == b"content-length":
            length = value
    if length != b"%d" % len(body):
        return None
    return RawResponse(response.status_code, response.raw_headers, body)
