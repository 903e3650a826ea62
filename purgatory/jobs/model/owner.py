"""Owners of jobs: the clients that added them over HTTP."""

from __future__ import annotations

import hashlib


def owner_of(identity: str) -> str:
    """Return what is stored for a client's identity: 16 hexadecimal digits of its hash."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]
