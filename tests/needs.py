"""Tests of what only newer versions of a framework do; `make test-versions` runs older ones too."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version


def needs(distribution: str, lowest: str, what: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test with an older `distribution`, which lacks `what`."""
    installed = version(distribution)
    return pytest.mark.skipif(
        Version(installed) < Version(lowest),
        reason=f"{what}: since {distribution} {lowest}, and this is {installed}",
    )


BODY_LIMIT = needs("fastapi", "0.164", "max_body_size")
ROUTE_CONTEXTS = needs("fastapi", "0.138", "routes that stay as they were when included")
ROUTE_IN_SCOPE = needs("starlette", "1.7", "the route in the scope")
STREAMED_BY_FASTAPI = needs("fastapi", "0.135", "streams of its own")
TELEMETRY = needs("fastapi", "0.142", "telemetry of its own")
DESCRIBED_DATACLASSES = needs("pydantic", "2.13", "descriptions of dataclasses")
CLOSED_AFTER_HTTP_1_0 = needs("uvicorn", "0.53", "Connection: close to HTTP/1.0")
STARTS_A_WORKER_BEFORE_IT_STOPS_ONE = needs("uvicorn", "0.54", "new workers before old ones end")
STOPS_IF_A_WORKER_CANNOT_START = needs("uvicorn", "0.50", "an end if workers cannot start")
