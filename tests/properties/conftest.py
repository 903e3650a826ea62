"""How hard Hypothesis tries: HYPOTHESIS_PROFILE=thorough tries much harder."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick",
    deadline=None,
    max_examples=200,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", settings.get_profile("quick"), max_examples=2_000, stateful_step_count=100
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Do not log: callbacks fail on purpose here, thousands of times."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
