"""What every refusal has to be."""

from __future__ import annotations

from typing import Any

from tests.acceptance.client import Reply

PROBLEM = "application/problem+json"


def check_refusal(reply: Reply, status: int, slug: str, *words: str) -> dict[str, Any]:
    """Fail unless `reply` is that problem, and its sentences hold `words`; return it."""
    document: dict[str, Any] = reply.json()
    assert (reply.status, document["type"]) == (status, f"/purgatory/problems/{slug}"), document
    assert reply.headers["content-type"] == PROBLEM
    assert reply.headers["cache-control"] == "no-store"
    assert document["status"] == status
    assert document["title"] and document["instance"].startswith("/purgatory/")
    assert len(document["detail"]) > 10, document
    if slug == "bad-parameter":
        assert "param" in document and document["allowed"], document
    for word in words:
        assert word in document["detail"], document
    # Nothing of the inside shows.
    assert "Traceback" not in document["detail"] and "pydantic" not in document["detail"].lower()
    return document
