"""Requests that Schemathesis makes up, with every scope, about what a victim has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.checks import CHECKS

from tests.acceptance.thread_server import KINDS, serve
from tests.bad_input.openapi_cases import made_up, operations_of
from tests.nightly import by_night
from tests.patience import PATIENCE_S
from tests.security.permissions import ANONYMOUS, CASES, KEY, SCOPES, SECRET
from tests.security.victims_world import TOKENS, VICTIM, create_service

# What OpenAPI allows may be refused for lack of a scope, or of what it is about.
ACCEPTANCE: list[Any] = [CHECKS.get_one("positive_data_acceptance")]


@dataclass(frozen=True, slots=True)
class Victim:
    """Where the service is, and the id of the victim's job."""

    url: str
    job: str


@contextmanager
def victim_of(app: FastAPI) -> Iterator[Victim]:
    """A job, and a key that has fired."""
    with serve(app, app.state.purgatory, KINDS[-1]) as running:
        headers = {"Authorization": f"Bearer {VICTIM}"}
        with httpx.Client(base_url=f"{running.url}/purgatory", headers=headers) as client:
            assert client.post(f"/keys/{KEY}", json={"value": SECRET}).status_code == 201
            job = {"handler": "note", "delay": 900.0, "payload": SECRET, "keys": [KEY]}
            added = client.post("/jobs", json=job)
            assert added.status_code == 201
        yield Victim(running.url, added.json()["id"])


# Hypothesis takes any use of `random` during a draw for one by the strategy: here the server's.
@pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)
def test_made_up_requests_with_every_scope(subtests: pytest.Subtests) -> None:
    """Every response is documented; those who may not see a thing learn nothing of it."""
    app = create_service(default_wait=0.0, max_wait=0.01)
    operations = operations_of(app)
    examples = made_up(by_night(30, 5), len(operations))
    with victim_of(app) as victim:
        for operation in operations:
            with subtests.test(operation.label):
                _check(app.state.store, victim, operation, examples)


def _check(store: Any, victim: Victim, operation: Any, examples: settings) -> None:
    name = operation.definition.raw["operationId"]
    seeing = frozenset().union(*(case.sees for case in CASES if case.operation == name))

    @given(operation.as_strategy(), st.sampled_from([*ANONYMOUS, *SCOPES]))
    @examples
    def check(case: Case[Any], label: str) -> None:
        if label not in seeing:
            of_victim = {"key": KEY, "id": victim.job}
            case.path_parameters = {
                name: of_victim.get(name, value) for name, value in case.path_parameters.items()
            }
        headers = {"Authorization": f"Bearer {TOKENS.get(label, label.replace(' ', '-'))}"}
        store.asked.clear()
        response = case.call(
            base_url=victim.url, headers=headers if label != "no token" else {}, timeout=PATIENCE_S
        )
        assert store.asked == [] or response.status_code not in (401, 403)
        assert label in seeing or SECRET not in response.text
        case.validate_response(response, excluded_checks=ACCEPTANCE)

    check()
