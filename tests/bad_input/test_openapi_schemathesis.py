"""What the API's documentation says is what the service does: Schemathesis tries to find a gap.

Over a real server, with every check that it has. `wait` is 0 unless a request says otherwise, and
short if it does, so that thousands of requests take seconds.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS

from app.main import create_app
from app.settings import Settings
from tests.acceptance.thread_server import KINDS, serve
from tests.bad_input.openapi_cases import CASES, made_up, operations_of
from tests.nightly import IS_NIGHTLY, by_night
from tests.patience import PATIENCE_S

# No schema can say which cursors are good, which Idempotency-Key was used for something else, which
# jobs there are, or that one of several parameters is needed: a request that fits it need not be
# accepted. How it may be refused is
# documented, and checked.
NEEDS_MORE = {
    "GET /purgatory/watch/{key}",
    "GET /purgatory/watch",
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
    "POST /purgatory/jobs/{id}/retry",
    "POST /purgatory/jobs:retry",
    "POST /purgatory/jobs:pause",
    "POST /purgatory/jobs:resume",
}
ACCEPTANCE: list[Any] = [CHECKS.get_one("positive_data_acceptance")]
# What is not allowed is sent to each operation by test_declared_parameters.py and
# test_declared_bodies.py: here only by night.
MODES = [*GenerationMode] if IS_NIGHTLY or CASES else [GenerationMode.POSITIVE]
REJECTION: list[Any] = [CHECKS.get_one("negative_data_rejection")]


# Hypothesis takes any use of `random` during a draw for one by the strategy. Here it is the server,
# in a thread beside: its worker draws pauses between retries of the jobs that were added.
@pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)
def test_the_documentation_is_true(subtests: pytest.Subtests) -> None:
    """Statuses, media types, headers and bodies as documented; what is not allowed is refused."""
    app = create_app(Settings(default_wait=0.0, max_wait=0.01, max_stream=0.01))
    operations = operations_of(app)
    examples = made_up(by_night(15, 3), len(operations) * len(MODES))
    with serve(app, app.state.purgatory, KINDS[-1]) as service:
        for operation, mode in itertools.product(operations, MODES):
            with subtests.test(operation.label, mode=mode.value):
                _check(service.url, operation, mode, examples)


def _check(address: str, operation: Any, mode: GenerationMode, examples: settings) -> None:
    excluded = ACCEPTANCE if operation.label in NEEDS_MORE else []

    @given(operation.as_strategy(generation_mode=mode))
    @examples
    def check(case: Case[Any]) -> None:
        response = case.call(base_url=address, timeout=PATIENCE_S)
        # A body that is too large is refused before anything in it is looked at, which Schemathesis
        # takes for acceptance. That it is documented is checked.
        too_large = REJECTION if response.status_code == 413 else []
        case.validate_response(response, excluded_checks=[*excluded, *too_large])

    try:
        check()
    except Unsatisfiable:
        # There is nothing about this operation that could be wrong.
        assert mode is GenerationMode.NEGATIVE
