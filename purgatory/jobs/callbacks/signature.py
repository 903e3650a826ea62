"""Signatures of callbacks: created here, verified by receivers. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from urllib.parse import urlsplit

from purgatory.timer.seconds import Seconds, seconds_of

SIGNATURE_HEADER = "Purgatory-Signature"
DEFAULT_TOLERANCE_S = 300.0

_SIGNATURE = re.compile(r"t=(\d{1,12}),kid=([0-9a-f]{8}),v2=([0-9a-f]{64})")


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
    mac = _mac(secret, kid, method, url, job_id, timestamp, body)
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
    tolerance: Seconds = DEFAULT_TOLERANCE_S,
) -> bool:
    """Return True iff `header` is a valid signature of the request, at most `tolerance` s old.

    For receivers: `header` is `Purgatory-Signature`, `url` is the whole URL that the job was given,
    as it was given (a proxy may have changed what arrives), `job_id` is `Purgatory-Job-Id`, `body`
    the received bytes, and `now` is `time.time()`. Compared in constant time. While secrets are
    being exchanged, try each: `kid=` is the `key_id` of the one that signed. A valid request may
    still be a repeat: remember the job's id.
    """
    match = _SIGNATURE.fullmatch(header.strip())
    # With a line feed it would be ambiguous where the id ends.
    if match is None or "\n" in f"{method}{url}{job_id}":
        return False
    timestamp = int(match[1])
    expected = _mac(secret, key_id(secret), method, url, job_id, timestamp, body)
    return hmac.compare_digest(expected, match[3]) and abs(now - timestamp) <= seconds_of(tolerance)


def _mac(
    secret: str | bytes, kid: str, method: str, url: str, job_id: str, timestamp: int, body: bytes
) -> str:
    # What cannot be parsed was not signed by us: it needs no canonical form.
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        url = parts._replace(netloc=parts.netloc.lower(), path=parts.path or "/").geturl()
    head = f"v2\n{timestamp}\n{kid}\n{method}\n{url}\n{job_id}\n"
    return hmac.new(_bytes(secret), head.encode() + body, hashlib.sha256).hexdigest()


def _bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret
