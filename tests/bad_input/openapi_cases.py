"""Requests that Schemathesis makes up from OpenAPI."""

from __future__ import annotations

import copy
import os
from typing import Any

import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.core.result import Ok

load_all_checks()

# PURGATORY_SCHEMATHESIS=10000 for so many in each file of tests, others each time.
CASES = int(os.environ.get("PURGATORY_SCHEMATHESIS", "0"))


def made_up(few: int, tests: int) -> settings:
    """Return the settings of one of `tests` tests, which makes up `few` requests by default."""
    return settings(
        max_examples=max(few, -(-CASES // tests)),
        deadline=None,
        derandomize=not CASES,
        suppress_health_check=list(HealthCheck),
    )


@schemathesis.serializer("application/jsonl")
def as_it_is(context: Any, value: Any) -> bytes:
    """Send lines as they were made up."""
    return value.encode("utf-8", "replace") if isinstance(value, str) else b""


def operations_of(app: FastAPI) -> list[Any]:
    """Return the operations of `app`, as Schemathesis has them."""
    schema = schemathesis.openapi.from_dict(_strict(_without_addresses(app.openapi())))
    return [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]


def _without_addresses(document: dict[str, Any]) -> dict[str, Any]:
    """Leave out the examples of callbacks: what is made up without them calls nobody."""
    document = copy.deepcopy(document)
    schemas = document["components"]["schemas"]
    del schemas["JobBody"]["examples"], schemas["CallbackBody"]["properties"]["url"]["examples"]
    return document


def _strict(document: dict[str, Any]) -> dict[str, Any]:
    """Put the body of errors in each status: `default` would allow statuses without an entry."""
    for operation in (item for path in document["paths"].values() for item in path.values()):
        responses = operation["responses"]
        problem = responses.pop("default", None)
        for status, response in responses.items():
            if problem is not None and int(status) >= 400:
                response["content"] = problem["content"]
    return document
