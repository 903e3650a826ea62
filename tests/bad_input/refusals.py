"""What every refusal has to be."""

from __future__ import annotations

from typing import Any

from tests.acceptance.client import Reply

PROBLEM = "application/problem+json"


def check_refusal(
    reply: Reply, status: int, slug: str, *words: str, case: object = ""
) -> dict[str, Any]:
    """Fail unless `reply` to `case` is that problem, and its `detail` holds `words`; return it."""
    document: dict[str, Any] = reply.json()
    case = f"{case}: {document}"[:2_000]
    assert reply.status == document.get("status") == status, case
    assert document["type"] == f"/purgatory/problems/{slug}", case
    assert reply.headers["content-type"] == PROBLEM, case
    assert reply.headers["cache-control"] == "no-store", case
    assert document["title"] and document["instance"].startswith("/purgatory/"), case
    assert len(document["detail"]) > 10, case
    if slug == "bad-parameter":
        assert "param" in document and document["allowed"], case
    for word in words:
        assert word in document["detail"], f"{word!r} is not in the detail of {case}"
    # Nothing of the inside shows.
    assert "Traceback" not in document["detail"] and "pydantic" not in document["detail"].lower()
    return document


def errors_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all mistakes that a refusal names, each with the way out; the first is its own."""
    errors: list[dict[str, Any]] = document.get("errors", [document])
    assert errors[0]["detail"] in document["detail"], document
    assert errors[0]["allowed"] == document["allowed"], document
    return errors
