"""Signatures of callbacks: created here, verified by receivers. Standard library only."""

from __future__ import annotations

import hashlib
import hmac
import re

SIGNATURE_HEADER = "Purgatory-Signature"
DEFAULT_TOLERANCE_S = 300.0

_HEADER = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})")


def sign(secret: str | bytes, job_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `Purgatory-Signature` for a callback.

    `t=<seconds since 1970>,v1=<hex>`: HMAC-SHA256 over the timestamp, the job's id and the body,
    joined by dots.
    """
    return f"t={timestamp},v1={_mac(secret, job_id, timestamp, body)}"


def verify_signature(
    secret: str | bytes,
    header: str,
    job_id: str,
    body: bytes,
    *,
    now: float,
    tolerance: float = DEFAULT_TOLERANCE_S,
) -> bool:
    """Return True iff `header` is a valid signature of `body`, at most `tolerance` seconds old.

    For receivers: `header` is `Purgatory-Signature`, `job_id` is `Purgatory-Job-Id`, `body` the
    received bytes, and `now` is `time.time()`. Compared in constant time. A valid request may still
    be a repeat: remember the job's id.
    """
    match = _HEADER.fullmatch(header.strip())
    if match is None:
        return False
    timestamp = int(match[1])
    # A dot in an id would be ambiguous: the rest of the id could be part of the body.
    if "." in job_id:
        return False
    is_fresh = abs(now - timestamp) <= tolerance
    wanted = _mac(secret, job_id, timestamp, body)
    return hmac.compare_digest(wanted, match[2]) and is_fresh


def _mac(secret: str | bytes, job_id: str, timestamp: int, body: bytes) -> str:
    key = secret.encode() if isinstance(secret, str) else secret
    message = b".".join((str(timestamp).encode(), job_id.encode(), body))
    return hmac.new(key, message, hashlib.sha256).hexdigest()
