"""What the API's documentation says is what the service does: Schemathesis tries to find a gap.

Over a real server, with every check that it has. `wait` is 0 unless a request says otherwise, and
short if it does, so that thousands of requests take seconds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok

from app.main import create_app
from app.settings import Settings
from tests.acceptance.thread_server import KINDS, serve
from tests.patience import PATIENCE_S

load_all_checks()
# No schema can say which cursors are good, which Idempotency-Key was used for something else, or
# which jobs there are: a request that fits it need not be accepted. How it may be refused is
# documented, and checked.
NEEDS_MORE = {
    "GET /purgatory/watch/{key}",
    "POST /purgatory/watch",
    "POST /purgatory/keys/{key}",
    "POST /purgatory/keys",
    "POST /purgatory/jobs",
    "GET /purgatory/jobs",
    "GET /purgatory/jobs/{id}",
    "POST /purgatory/jobs:batch",
    "PATCH /purgatory/jobs/{id}",
    "DELETE /purgatory/jobs/{id}",
    "POST /purgatory/jobs/{id}/run",
}
ACCEPTANCE: list[Any] = [CHECKS.get_one("positive_data_acceptance")]


@schemathesis.serializer("application/jsonl")
def as_it_is(context: Any, value: Any) -> bytes:
    """Send lines as they were made up."""
    return value.encode("utf-8", "replace") if isinstance(value, str) else b""


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


APP = create_app(Settings(default_wait=0.0, max_wait=0.01))
SCHEMA = schemathesis.openapi.from_dict(_strict(_without_addresses(APP.openapi())))
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations() if isinstance(result, Ok)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The service, as it is served by default."""
    with serve(APP, APP.state.purgatory, KINDS[-1]) as running:
        yield running.url


# Hypothesis takes any use of `random` during a draw for one by the strategy. Here it is the server,
# in a thread beside: its worker draws pauses between retries of the jobs that were added.
@pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_the_documentation_is_true(address: str, operation: Any, mode: GenerationMode) -> None:
    """Statuses, media types, headers and bodies as documented; what is not allowed is refused."""
    excluded = ACCEPTANCE if operation.label in NEEDS_MORE else []

    @given(operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    def check(case: Case[Any]) -> None:
        case.call_and_validate(base_url=address, timeout=PATIENCE_S, excluded_checks=excluded)

    try:
        check()
    except Unsatisfiable:
        # There is nothing about this operation that could be wrong.
        assert mode is GenerationMode.NEGATIVE
