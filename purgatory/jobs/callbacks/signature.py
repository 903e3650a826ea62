"""Signatures of callbacks: created here, verified by receivers. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from urllib.parse import urlsplit

SIGNATURE_HEADER = "Purgatory-Signature"
DEFAULT_TOLERANCE_S = 300.0

_V2 = re.compile(r"t=(\d{1,12}),kid=([0-9a-f]{8}),v2=([0-9a-f]{64})")
_V1 = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})")


def key_id(secret: str | bytes) -> str:
    """Return the id of a secret: eight hexadecimal digits that say which secret signed."""
    return hmac.new(_bytes(secret), b"purgatory key id", hashlib.sha256).hexdigest()[:8]


def sign(
    secret: str | bytes, *, method: str, url: str, job_id: str, timestamp: int, body: bytes
) -> str:
    """Return the value of `Purgatory-Signature` for a callback.

    `t=<seconds since 1970>,kid=<key_id(secret)>,v2=<hex>`: HMAC-SHA256 over the version, the
    timestamp, the id of the secret, the method, the URL, the job's id and the body, joined by line
    feeds; the URL has its host in lower case, and an empty path as `/`. Method and URL are signed
    so that a receiver cannot send the request on to another one in our name.
    """
    kid = key_id(secret)
    mac = _mac_v2(secret, kid, method, url, job_id, timestamp, body)
    return f"t={timestamp},kid={kid},v2={mac}"


def verify_signature(
    secret: str | bytes,
    header: str,
    *,
    method: str,
    url: str,
    job_id: str,
    body: bytes,
    now: float,
    tolerance: float = DEFAULT_TOLERANCE_S,
    accept_v1: bool = False,
) -> bool:
    """Return True iff `header` is a valid signature of the request, at most `tolerance` s old.

    For receivers: `header` is `Purgatory-Signature`, `url` is the whole URL that the job was given,
    as it was given (a proxy may have changed what arrives), `job_id` is `Purgatory-Job-Id`, `body`
    the received bytes, and `now` is `time.time()`. Compared in constant time. While secrets are
    being exchanged, try each: `kid=` is the `key_id` of the one that signed. A valid request may
    still be a repeat: remember the job's id.

    `accept_v1` also accepts version 1, which older services send: it covers neither method nor URL.
    """
    header = header.strip()
    # A line feed, or a dot in version 1, would make it ambiguous where the id ends.
    if "\n" in f"{method}{url}{job_id}":
        return False
    if (match := _V2.fullmatch(header)) is not None:
        timestamp, received = int(match[1]), match[3]
        wanted = _mac_v2(secret, key_id(secret), method, url, job_id, timestamp, body)
    elif accept_v1 and "." not in job_id and (match := _V1.fullmatch(header)) is not None:
        timestamp, received = int(match[1]), match[2]
        wanted = _mac(secret, b".".join((match[1].encode(), job_id.encode(), body)))
    else:
        return False
    return hmac.compare_digest(wanted, received) and abs(now - timestamp) <= tolerance


def _mac_v2(
    secret: str | bytes, kid: str, method: str, url: str, job_id: str, timestamp: int, body: bytes
) -> str:
    # What cannot be parsed was not signed by us: it needs no canonical form.
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        url = parts._replace(netloc=parts.netloc.lower(), path=parts.path or "/").geturl()
    head = f"v2\n{timestamp}\n{kid}\n{method}\n{url}\n{job_id}\n"
    return _mac(secret, head.encode() + body)


def _mac(secret: str | bytes, message: bytes) -> str:
    return hmac.new(_bytes(secret), message, hashlib.sha256).hexdigest()


def _bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret
